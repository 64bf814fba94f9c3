# SPDX-License-Identifier: Apache-2.0
"""The end of a run, last on the screen: what failed, where, why and how to repeat it; what was left for the night. With
`--cost FILE` also the CPU time that each test file took. A plugin of pytest, registered in tests/conftest.py; with
pytest-xdist the workers measure and the controller reports."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MAX_SHOWN = 12
CPU = "cpu_seconds"


def cpu_seconds() -> float:
    """Of this process and of those that it started and waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_began] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append((CPU, cpu_seconds() - item.stash[_began]))
    return report


_began = pytest.StashKey[float]()
_left = pytest.StashKey[int]()


def pytest_deselected(items: list[pytest.Item]) -> None:
    if items:
        config = items[0].config
        config.stash[_left] = config.stash.get(_left, 0) + len(items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left"] = session.config.stash.get(_left, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_left] = getattr(node, "workeroutput", {}).get("left", 0)  # each worker leaves the same


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    write = terminalreporter.write_line
    if (path := config.getoption("cost")) is not None:
        reports = (each for group in terminalreporter.stats.values() for each in group)
        Path(path).write_text(cost_table([each for each in reports if hasattr(each, "user_properties")]))
    failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    if failed:
        terminalreporter.section(f"{len(failed)} FAILED")
    for report in failed[:MAX_SHOWN]:
        place, reason = describe(report)
        hung = reason.startswith("Failed: Timeout")
        write(f"{'HUNG' if hung else 'FAILED'} {report.nodeid}")
        write(f"  {place}: {reason}")
        write(f"  again: .venv/bin/python -m pytest '{report.nodeid}'")
    if len(failed) > MAX_SHOWN:
        write(f"... and {len(failed) - MAX_SHOWN} more")
    left = config.stash.get(_left, 0)
    if left and "not nightly" in config.option.markexpr:
        write(f"left for the night: {left} tests (make nightly)")


def describe(report: Any) -> tuple[str, str]:
    """Where a test failed, as `file:line`, and the first line of why."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:  # a file that cannot be imported, a worker that died
        lines = [line for line in str(report.longrepr).splitlines() if line.strip()]
        return str(report.nodeid), next(
            (line for line in lines if "Error" in line), lines[-1] if lines else ""
        )
    path = Path(crash.path)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{crash.lineno}", crash.message.splitlines()[0] if crash.message else ""


def cost_table(reports: list[Any]) -> str:
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for report in reports:
        for name, value in report.user_properties:
            if name == CPU:
                seconds[report.nodeid.partition("::")[0]] += value
                tests[report.nodeid.partition("::")[0]] += 1
    lines = [
        "| file | tests | CPU seconds |",
        "|---|---:|---:|",
        *(f"| {file} | {tests[file]} | {each:.1f} |" for file, each in seconds.most_common() if each >= 1),
        f"| all, with those below 1 s | {tests.total()} | {seconds.total():.0f} |",
    ]
    return "\n".join(lines) + "\n"
