# SPDX-License-Identifier: Apache-2.0
"""Confines the process that reads a foreign file: Landlock for files, seccomp for the network and other processes, and
resource limits. Imports the standard library alone, because only threads that start later are confined by Landlock."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

import fused_mlp

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_O_PATH = 0o10000000
# Rights of Landlock. Linux 5.13 knows the first 13; each later version of the interface adds some.
_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_READ = _READ_FILE | _READ_DIR
_OF_FILES = _WRITE_FILE | _READ_FILE | _TRUNCATE
# With removing and making of files and folders.
_CHANGE = _READ | _WRITE_FILE | _TRUNCATE | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8
_HANDLED = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
_TCP = 0b11  # bind and connect
_SCOPES = 0b11  # abstract sockets and signals of processes outside

# Python, its packages and the C library read these, beside the folders of sys.path.
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/proc/self", "/proc/cpuinfo", "/proc/meminfo",
    "/proc/stat", "/sys/devices/system", "/sys/fs/cgroup", "/dev/null", "/dev/zero", "/dev/urandom",
)  # fmt: skip

_NO_NEW_PRIVS, _SET_SECCOMP, _SET_PDEATHSIG, _FILTER = 38, 22, 1, 2
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT, _ARGUMENT_BYTES = 0, 4, 16, 8
_CLONE_THREAD = 0x10000
_X32 = 0x40000000
# Denied: sockets, other programs, other processes and memory shared with them, attributes of files (which Landlock does
# not cover) and truncation by name (which it covers since Linux 6.2), and parts of the kernel that no reader needs. By
# name, the numbers on x86-64 and arm64; None: arm64 does not have the call.
_DENIED = {
    "socket": (41, 198), "connect": (42, 203), "execve": (59, 221), "execveat": (322, 281), "fork": (57, None),
    "vfork": (58, None), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "chmod": (90, None),
    "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None), "lchown": (94, None),
    "fchown": (93, 55), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "removexattrat": (466, 466), "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "open_by_handle_at": (304, 265),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "io_uring_setup": (425, 425), "bpf": (321, 280),
    "userfaultfd": (323, 282), "perf_event_open": (298, 241), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "truncate": (76, 45), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "socketpair": (53, 199), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "process_madvise": (440, 440), "process_mrelease": (448, 448),
}  # fmt: skip
_CLONE, _CLONE3, _OPENAT2 = (56, 220), 435, 437
# Calls that open a file: their numbers, and which argument the flags are.
_OPENS = (((2, None), 1), ((257, 56), 2))
# To truncate without the right to write, and the access mode 3, for which Landlock asks for no right.
_DENIED_FLAGS = (os.O_TRUNC, os.O_ACCMODE, os.O_ACCMODE | os.O_TRUNC)
# Allowed for this process alone, with 0 as the first argument: prlimit64, sched_setparam, sched_setscheduler,
# sched_setaffinity, sched_setattr.
_OWN = ((302, 261), (142, 118), (144, 119), (203, 122), (314, 274))
# The second argument of fcntl and ioctl is a command. Refused for fcntl: commands that send signals to other processes
# (F_SETOWN, F_SETSIG, F_SETOWN_EX, F_NOTIFY) or block them (F_SETLEASE). The commands of ioctl are endless, and some
# change a file that is open for reading. Allowed are TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, TCGETS2.
_FCNTL, _REFUSED_FCNTL = (72, 25), (8, 10, 15, 1024, 1026)
_IOCTL, _ALLOWED_IOCTL = (16, 29), (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A)
_CAPGET, _CAPSET = (125, 90), (126, 91)
_CAPABILITIES_V3 = struct.pack("=Ii", 0x20080522, 0)
_READ_ANY_FILE = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_MAX_FILES = 1024


def confine(readable: Iterable[Path], writable: Path, memory: int, cpu_s: int) -> list[str]:
    """Confines this process for good: it can read `readable` and what Python needs, change files below `writable`, and
    use no network. Returns what this kernel does not offer, in words."""
    for limit, value in (
        (resource.RLIMIT_DATA, memory),  # not RLIMIT_AS: CUDA builds of torch reserve far more than they use
        (resource.RLIMIT_FSIZE, memory),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_NOFILE, _MAX_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        most = value + 1 if hard == resource.RLIM_INFINITY else min(value + 1, hard)
        # The hard limit is above the other: SIGXCPU tells that limit from the SIGKILL of a machine without memory.
        resource.setrlimit(limit, (min(value, most), most))
    if sys.platform != "linux":
        return ["files and network: needs Linux"]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    libc.prctl(_SET_PDEATHSIG, 9, 0, 0, 0)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    return [*_restrict_files(libc, readable, writable), *_restrict_calls(libc)]


def _restrict_files(libc: ctypes.CDLL, readable: Iterable[Path], writable: Path) -> list[str]:
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return [f"files: the kernel has no Landlock ({os.strerror(ctypes.get_errno())})"]
    handled = _HANDLED[min(version, max(_HANDLED))]
    attributes = struct.pack("=Q", handled)
    attributes += struct.pack("=Q", _TCP) if version >= 4 else b""
    attributes += struct.pack("=Q", _SCOPES) if version >= 6 else b""
    rules = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    package = Path(__file__).resolve().parents[1]
    own = [*fused_mlp.__path__, *filter(None, sys.path), sys.prefix, sys.base_prefix, str(package)]
    paths = {Path(each): _READ for each in (*_SYSTEM, *own, *map(str, readable))}
    paths |= {Path("/dev/null"): _OF_FILES, writable: _CHANGE}
    for path, rights in paths.items():
        try:
            descriptor = os.open(path, _O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not every system has all of them
        allowed = rights & handled & (~0 if path.is_dir() else _OF_FILES)
        libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", allowed, descriptor), 0)
        os.close(descriptor)
    failed = libc.syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)
    return [f"files: Landlock failed ({os.strerror(ctypes.get_errno())})"] if failed else []


def _restrict_calls(libc: ctypes.CDLL) -> list[str]:
    if platform.machine() not in _MACHINES:
        return [f"network: no list of system calls for {platform.machine()}"]
    column, machine = _MACHINES[platform.machine()]
    _drop_capabilities(libc, column)
    denied = [numbers[column] for numbers in _DENIED.values()]
    deny = _step(_RETURN, _ERRNO | errno.EPERM)
    program = [
        _step(_LOAD, _MACHINE),
        *_if(_EQUAL, machine, otherwise=_step(_RETURN, _KILL)),
        _step(_LOAD, _NUMBER),
        *_if(_AT_LEAST, _X32, then=deny),
        *(step for number in denied if number is not None for step in _if(_EQUAL, number, then=deny)),
        *(step for numbers, flags in _OPENS for step in _check_flags(numbers[column], flags, deny)),
        *(step for numbers in _OWN for step in _check_own(numbers[column], deny)),
        *_check_command(_FCNTL[column], _REFUSED_FCNTL, deny, otherwise=_step(_RETURN, _ALLOW)),
        *_check_command(_IOCTL[column], _ALLOWED_IOCTL, _step(_RETURN, _ALLOW), otherwise=deny),
        # Their flags are in memory, where a filter cannot see them. Libraries fall back to clone and openat.
        *_if(_EQUAL, _CLONE3, then=_step(_RETURN, _ERRNO | errno.ENOSYS)),
        *_if(_EQUAL, _OPENAT2, then=_step(_RETURN, _ERRNO | errno.ENOSYS)),
        *_if(_EQUAL, _CLONE[column], otherwise=_step(_RETURN, _ALLOW)),
        _step(_LOAD, _FIRST_ARGUMENT),
        *_if(_ANY_BIT, _CLONE_THREAD, otherwise=deny),
        _step(_RETURN, _ALLOW),
    ]
    steps = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("=HxxxxxxQ", len(program), ctypes.addressof(steps))
    failed = libc.prctl(_SET_SECCOMP, _FILTER, header, 0, 0)
    return [f"network: seccomp failed ({os.strerror(ctypes.get_errno())})"] if failed else []


def _check_own(number: int, deny: bytes) -> list[bytes]:
    steps = [_step(_LOAD, _FIRST_ARGUMENT), *_if(_EQUAL, 0, otherwise=deny), _step(_RETURN, _ALLOW)]
    return [_step(_EQUAL, number, 0, len(steps)), *steps]


def _check_command(number: int, commands: Iterable[int], found: bytes, *, otherwise: bytes) -> list[bytes]:
    """`found`: what ends a call with one of these commands."""
    steps = [
        _step(_LOAD, _FIRST_ARGUMENT + _ARGUMENT_BYTES),  # its lower half: the kernel drops the other
        *(step for command in commands for step in _if(_EQUAL, command, then=found)),
        otherwise,
    ]
    return [_step(_EQUAL, number, 0, len(steps)), *steps]


def _check_flags(number: int | None, argument: int, deny: bytes) -> list[bytes]:
    if number is None:
        return []
    steps = [
        _step(_LOAD, _FIRST_ARGUMENT + argument * _ARGUMENT_BYTES),
        _step(_AND, os.O_TRUNC | os.O_ACCMODE),
        *(step for flags in _DENIED_FLAGS for step in _if(_EQUAL, flags, then=deny)),
        _step(_RETURN, _ALLOW),
    ]
    return [_step(_EQUAL, number, 0, len(steps)), *steps]


def _drop_capabilities(libc: ctypes.CDLL, column: int) -> None:
    """For root: of its capabilities only that to open files of other users is left."""
    held = ctypes.create_string_buffer(24)
    if libc.syscall(_CAPGET[column], _CAPABILITIES_V3, held) == 0:
        effective, permitted = (each & _READ_ANY_FILE for each in struct.unpack_from("=II", held))
        left = struct.pack("=6I", effective, permitted, 0, 0, 0, 0)
        libc.syscall(_CAPSET[column], _CAPABILITIES_V3, left)


def _step(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
    """One instruction of a seccomp filter. `true` and `false`: how many instructions a comparison skips."""
    return struct.pack("=HBBI", code, true, false, value)


def _if(code: int, value: int, then: bytes = b"", otherwise: bytes = b"") -> list[bytes]:
    """A comparison that ends in `then` or `otherwise`, whichever is given, or goes on."""
    return [_step(code, value, 0, 1), then] if then else [_step(code, value, 1, 0), otherwise]
