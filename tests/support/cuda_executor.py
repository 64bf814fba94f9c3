# SPDX-License-Identifier: Apache-2.0
"""The process that runs PTX for the fake driver (kernels/csrc/tests/fake_cuda/executor.hpp describes how they talk):
the interpreter of tests/support/ptx on the fake's memory. Started by the fake, as FAKE_CUDA_EXECUTOR says."""

from __future__ import annotations

import mmap
import socket
import struct
import sys

import numpy as np

from tests.support.ptx import BadAccess, Memory, PtxError, run

ILLEGAL_ADDRESS, LAUNCH_FAILED = 700, 719
LOAD = 1


class Requests:
    """Numbers and texts out of a socket; EOFError at its end."""

    def __init__(self, source: socket.socket) -> None:
        self._file = source.makefile("rb")

    def bytes(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise EOFError
        return data

    def numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}")))

    def text(self) -> bytes:
        return self.bytes(self.numbers("I")[0])


def execute(requests: Requests, modules: dict[int, str], device: np.ndarray, base: int) -> None:
    (module, *sizes) = requests.numbers("Q7I")
    name, parameters = requests.text().decode(), requests.text()
    memory = Memory()
    for _ in range(requests.numbers("I")[0]):
        address, size = requests.numbers("QQ")
        memory.add(device[address - base :][:size], address)
    run(modules[module], name, tuple(sizes[:3]), tuple(sizes[3:6]), sizes[6], parameters, memory)


def main() -> None:
    fd, memory_fd, base, size = map(int, sys.argv[1:])
    device = np.frombuffer(mmap.mmap(memory_fd, size), np.uint8)
    modules: dict[int, str] = {}
    with socket.socket(fileno=fd) as driver:
        requests = Requests(driver)
        while True:
            try:
                (kind,) = requests.numbers("I")
            except EOFError:
                return
            code, said = 0, ""
            if kind == LOAD:
                module, length = requests.numbers("QQ")
                modules[module] = requests.bytes(length).decode()
            else:
                try:
                    execute(requests, modules, device, base)
                except PtxError as error:
                    code = ILLEGAL_ADDRESS if isinstance(error, BadAccess) else LAUNCH_FAILED
                    said = f"{type(error).__name__}: {error}"
            answer = said.encode()
            driver.sendall(struct.pack("<II", code, len(answer)) + answer)


if __name__ == "__main__":
    main()
