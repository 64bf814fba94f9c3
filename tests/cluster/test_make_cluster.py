"""`make cluster` as it is run: what it says to try works, a replica that dies is told of, Ctrl-C leaves nothing."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request

from deploy.cluster.envoy import wait_for


def test_the_cluster_works_as_it_says_and_leaves_nothing() -> None:
    command = [sys.executable, "-m", "deploy.cluster", "--replicas", "2", "--any-ports"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        said = "".join(iter(process.stdout.readline, "  stop        Ctrl-C\n"))
        for name in ("try", "with TLS"):
            predict = re.search(rf"^  {name} +(.*)$", said, re.MULTILINE)
            assert predict, said
            done = subprocess.run(shlex.split(predict[1]), capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        prometheus = re.search(r"Prometheus  (\S+)", said)
        assert prometheus, said
        wait_for(lambda: scraped(prometheus[1]), "Prometheus scrapes both servers and Envoy")
        replicas = [int(pid) for pid in re.findall(r"replica \d .*pid (\d+)", said)]
        assert len(replicas) == 2
        os.kill(replicas[0], signal.SIGKILL)
        os.kill(replicas[1], signal.SIGSTOP)
        assert process.stdout.readline() == "replica 0 has ended: Envoy sends its calls to the others\n"
        children = children_of(process.pid)
        assert len(children) >= 3
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(10) == 0
        assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]
    finally:
        process.kill()
        process.communicate()


def scraped(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/targets", timeout=10) as response:
            return response.read().count(b'"health":"up"') == 3
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
