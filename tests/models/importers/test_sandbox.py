# SPDX-License-Identifier: Apache-2.0
"""The process that reads a foreign file: what it cannot reach, and that imports are the same with it and without."""

import io
import json
import os
import socket
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

from fused_mlp.models import ModelLoadError
from fused_mlp.models.importers import isolation
from fused_mlp.models.importers.importer import import_model

CONFINED = """
import os, resource, signal, socket, sys, threading, time
from pathlib import Path
from fused_mlp.models.importers import sandbox
from fused_mlp.models.importers.sandbox import confine
readable, writable, other = map(Path, sys.argv[1:4])
{before}
missing = confine([readable], writable, 1 << 30, 60)
assert not missing, missing
try:
{code}
except (OSError, MemoryError) as error:
    print(type(error).__name__)
else:
    print("done")
"""


@pytest.fixture
def confined(tmp_path):
    """Runs code in a confined process: `readable`, `writable` and `other` are folders with a file in each."""
    folders = [tmp_path / name for name in ("readable", "writable", "other")]
    for folder in folders:
        folder.mkdir()
        (folder / "file").write_text("text")

    def run(code, before=""):
        program = CONFINED.format(code=textwrap.indent(code, "    "), before=before)
        made = subprocess.run(
            [sys.executable, "-c", program, *folders], capture_output=True, text=True, timeout=60
        )
        assert made.stderr == ""
        return made.stdout.strip()

    return run


@pytest.mark.parametrize(
    "code",
    [
        "(readable / 'file').read_text(); os.listdir(readable)",
        "(writable / 'new').write_text('x'); (writable / 'new').rename(writable / 'moved')",
        "resource.getrlimit(resource.RLIMIT_CPU); resource.prlimit(0, resource.RLIMIT_CPU)",
        "thread = threading.Thread(target=time.monotonic); thread.start(); thread.join()",
        "import numpy as np; np.ones((64, 64)) @ np.ones((64, 64))",
        "import torch; torch.ones(300, 300) @ torch.ones(300, 300)",
    ],
)
def test_a_reader_can_do_its_work(confined, code):
    assert confined(code) == "done"


@pytest.mark.parametrize(
    "code",
    [
        "(other / 'file').read_text()",
        "os.listdir(other)",
        "Path('/etc/passwd').read_text()",
        "(readable / 'file').write_text('x')",
        "(other / 'new').touch()",
        "(other / 'file').unlink()",
        "(readable / 'file').rename(writable / 'x')",
        "(writable / 'link').symlink_to(other / 'file')",
        "(readable / 'file').chmod(0o777)",
        "os.utime(readable / 'file', (0, 0))",
        "os.chown(readable / 'file', os.getuid(), os.getgid())",
        "os.setxattr(readable / 'file', 'user.x', b'x')",
        "os.removexattr(readable / 'file', 'user.x')",
        "Path(f'/proc/{os.getppid()}/environ').read_bytes()",
    ],
)
def test_files_of_others_are_out_of_reach(confined, code):
    assert confined(code) == "PermissionError"


@pytest.mark.parametrize("version", [1, 2, 9])
@pytest.mark.parametrize(
    "code",
    [
        "os.truncate(other / 'file', 0)",
        "os.truncate(readable / 'file', 0)",
        "os.open(readable / 'file', os.O_RDONLY | os.O_TRUNC)",
        "os.open(other / 'file', os.O_ACCMODE | os.O_TRUNC)",  # a mode that needs no right of Landlock
    ],
)
def test_files_of_others_cannot_be_truncated_on_any_kernel(confined, tmp_path, code, version):
    """Landlock knows the right to truncate since its third version, of Linux 6.2."""
    known = f"sandbox._HANDLED = {{k: v for k, v in sandbox._HANDLED.items() if k <= {version}}}"
    assert confined(code, known) == "PermissionError"
    assert {(tmp_path / name / "file").read_text() for name in ("readable", "other")} == {"text"}
    assert confined("(writable / 'file').write_text('x')", known) == "done"


@pytest.mark.parametrize(
    "code",
    [
        "fcntl.ioctl(file, 0x40086602, bytes(8))",  # FS_IOC_SETFLAGS: chattr
        "fcntl.ioctl(file, 0x401C5820, bytes(28))",  # FS_IOC_FSSETXATTR
        "fcntl.ioctl(file, 0x40806685, bytes(128))",  # FS_IOC_ENABLE_VERITY: read-only for good
        "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)",  # writers block
    ],
)
def test_attributes_of_files_cannot_be_changed_by_readers(confined, code):
    assert (
        confined(f"import fcntl; file = os.open(readable / 'file', os.O_RDONLY); {code}") == "PermissionError"
    )


def test_files_of_others_cannot_be_linked(confined):
    assert confined("os.link(other / 'file', writable / 'x')") == "OSError"  # "invalid cross-device link"


@pytest.mark.parametrize(
    "code",
    [
        "socket.create_connection(('127.0.0.1', {port}), timeout=5)",
        "socket.socket(socket.AF_UNIX)",
        "socket.socketpair()",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    ],
)
def test_there_is_no_network(confined, code):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert confined(code.format(port=server.getsockname()[1])) == "PermissionError"


@pytest.mark.parametrize(
    "code",
    [
        "os.fork()",
        "os.execv('/bin/sh', ['sh', '-c', 'exit'])",
        "os.posix_spawn('/bin/sh', ['sh', '-c', 'exit'], {})",
        "os.kill(os.getppid(), 0)",
        "signal.pthread_kill(threading.get_ident(), 0)",
        "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "os.sched_setaffinity(os.getppid(), {0})",
        "os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))",
        "os.sched_setparam(os.getppid(), os.sched_param(0))",
        # The kernel signals the owner of a pipe. Landlock restricts that since Linux 6.12.
        "import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
        "import fcntl; fcntl.fcntl(os.pipe()[0], 15, b'\\1\\0\\0\\0' + os.getppid().to_bytes(4, 'little'))",
        "import fcntl; fcntl.fcntl(os.pipe()[0], fcntl.F_SETSIG, signal.SIGKILL)",
        *(
            f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); r = libc.{call}\n"
            "if r == -1: raise OSError(ctypes.get_errno(), '')"
            for call in (
                "shmget(0, 4096, 0o1600)",
                "shmat(0, None, 0)",
                "shmctl(0, 0, None)",
                "msgget(0, 0o1600)",
                "msgsnd(0, b'12345678x', 1, 0)",
                "msgctl(0, 0, None)",
                "semget(0, 1, 0o1600)",
                "semop(0, None, 0)",
                "semctl(0, 0, 0)",
                "mq_open(b'/fused-mlp', 0)",
                "mq_unlink(b'/fused-mlp')",
                "syscall({'x86_64': 314, 'aarch64': 274}[os.uname().machine], os.getppid(), b'0' * 56, 0)",
                "syscall({'x86_64': 256, 'aarch64': 238}[os.uname().machine], os.getppid(), 1, b'1' * 8, b'1' * 8)",
                "syscall({'x86_64': 279, 'aarch64': 239}[os.uname().machine], os.getppid(), 0, None, None, None, 0)",
            )
        ),
    ],
)
def test_other_processes_are_out_of_reach(confined, code):
    assert confined(code) == "PermissionError"


def test_memory_is_bounded(confined):
    assert confined("bytearray(1 << 31)") == "MemoryError"


@pytest.fixture
def checkpoint(tmp_path):
    random = np.random.default_rng(0)
    path = tmp_path / "net.safetensors"
    save_file({"0.weight": random.normal(size=(3, 5)).astype(np.float32), "0.bias": np.ones(3, "f4")}, path)
    return path


def test_an_import_is_the_same_and_leaves_nothing_else(tmp_path, checkpoint):
    told = []
    made = [
        import_model(
            checkpoint,
            tmp_path / "repo",
            "net",
            activation="relu",
            labels=["a", "b", "c"],
            check=(np.zeros((1, 5), np.float32), np.ones((1, 3), np.float32)),
            progress=told.append,
            sandbox=sandbox,
        )
        for sandbox in (False, True)
    ]
    apart, here = (json.loads((each.path / "model.json").read_text()) for each in made)
    assert [each.version for each in made] == [1, 2]
    assert made[0].format == made[1].format == "safetensors"
    assert apart == here
    assert len({(each.path / "model.safetensors").read_bytes() for each in made}) == 1
    assert told[: len(told) // 2] == told[len(told) // 2 :]
    assert os.listdir(tmp_path / "repo") == ["net"]


KILLED = """
import sys
from pathlib import Path
from fused_mlp.models.importers.isolation import Sandbox

with Sandbox(Path(sys.argv[1]), Path(sys.argv[2])):
    print("began", flush=True)
    sys.stdin.readline()
"""


def test_the_next_import_removes_what_one_that_was_killed_has_left(tmp_path, checkpoint):
    repository = tmp_path / "repository"
    repository.mkdir()
    command = [sys.executable, "-c", KILLED, checkpoint, repository]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout.readline() == "began\n"
        killed.kill()
    assert len(list(repository.iterdir())) == 1
    import_model(checkpoint, repository, name="net", activation="relu", sandbox=True)
    assert [path.name for path in repository.iterdir()] == ["net"]


def test_errors_and_warnings_come_through_unchanged(tmp_path, checkpoint):
    texts = []
    for sandbox in (False, True):
        with pytest.raises(ModelLoadError) as caught:
            import_model(checkpoint, tmp_path / "repo", "net", sandbox=sandbox)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert not (tmp_path / "repo").exists()
    save_file({"0.weight": np.full((3, 5), 3.4e38, np.float32)}, checkpoint)
    for sandbox in (False, True):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with pytest.raises(ModelLoadError) as caught:
                import_model(
                    checkpoint,
                    tmp_path / "repo",
                    "net",
                    activation="relu",
                    precision="bfloat16",
                    sandbox=sandbox,
                )
        texts.append((str(caught.value), [str(each.message) for each in told]))
    assert texts[2] == texts[3]


def test_secrets_of_the_environment_stay_in_this_process(tmp_path, checkpoint, monkeypatch):
    for name, value in (
        ("FUSED_MLP_API_KEY", "secret"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("LC_ALL", "C"),
    ):
        monkeypatch.setenv(name, value)
    with isolation.Sandbox(checkpoint, tmp_path) as sandbox:
        seen = b""
        while not seen:  # the child's memory is being set up
            seen = Path(f"/proc/{sandbox._child.pid}/environ").read_bytes()
    assert b"LC_ALL=C\0" in seen
    assert b"secret" not in seen


def test_links_of_a_download_cache_are_followed(tmp_path, checkpoint):
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(checkpoint)
    for source in (folder, folder / "model.safetensors"):
        assert import_model(source, tmp_path / "repo", "net", activation="relu", sandbox=True).mlp


def test_links_to_folders_open_nothing(tmp_path, checkpoint):
    folder, secrets = tmp_path / "model", tmp_path / "secrets"
    folder.mkdir()
    secrets.mkdir()
    checkpoint.rename(folder / "model.safetensors")
    (folder / "link").symlink_to(secrets)
    assert secrets not in isolation._readable(folder)
    assert import_model(folder, tmp_path / "repo", "net", activation="relu", sandbox=True).mlp


@pytest.mark.parametrize("said", [b"[" * 60_000, b"7\n", b'["error"]\n', b"\xff\n", b'["done", {}'])
def test_whatever_a_child_says_that_was_taken_over_is_one_line(tmp_path, checkpoint, said):
    with isolation.Sandbox(checkpoint, tmp_path) as child:
        child._child.stdout.close()
        child._child.stdout = io.BytesIO(said)
        with pytest.raises(ModelLoadError, match="the process that read it ended"):
            child.run({"source": checkpoint, "name": "net"}, print)


def test_too_much_memory_is_one_line(tmp_path):
    save_file({"0.weight": np.zeros((8192, 8192), np.float32)}, tmp_path / "net.safetensors")
    arguments = (tmp_path / "net.safetensors", tmp_path / "repo", "net")
    with pytest.raises(ModelLoadError, match=r"needs more than 0\.4 GiB; sandbox_memory=\.\.\. allows more$"):
        import_model(*arguments, activation="relu", sandbox=True, sandbox_memory=0.4)
    assert not (tmp_path / "repo").exists()


class Writer(nn.Module):
    """Writes to a file of its author's choice when it runs."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0 + torch.from_file(self.path, shared=True, size=20).fill_(1.0)


class Endless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(1 << 60):
            x = x * 1.0
        return x


def import_script(tmp_path, module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        torch.jit.script(module).save(tmp_path / "net.pt")
    options = {"unsafe_torchscript": True, "row_shape": (20,), "sandbox": True}
    with pytest.raises(ModelLoadError) as caught:
        import_model(tmp_path / "net.pt", tmp_path / "repo", "net", **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_too_much_time_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(isolation, "_BASE_CPU_S", 5)
    assert "takes more than 5 s of CPU time; sandbox=False" in import_script(tmp_path, Endless())


def test_torchscript_runs_where_it_can_write_to_no_file(tmp_path):
    witness = tmp_path / "witness"
    witness.write_bytes(bytes(80))
    assert "failed in the TorchScript interpreter" in import_script(tmp_path, Writer(str(witness)))
    assert witness.read_bytes() == bytes(80)
