# SPDX-License-Identifier: Apache-2.0
"""Where the figures come from: machine, versions, and every result file with its command."""

from __future__ import annotations

from bench.docs.markdown import clean_command, paragraphs, table
from bench.docs.registry import Results, figure


@figure("environment")
def environment(results: Results) -> str:
    """The machine, the versions of all engines and servers, and each result file with date, commit and command."""
    versions: dict[str, set[str]] = {}
    machines: set[str] = set()
    rows = []
    for name in results.names():
        result = results[name]
        machine = result["machine"]
        isa = f", {machine['isa']}" if "isa" in machine else ""
        machines.add(
            f"{machine['cpu']}, {machine['cores']} cores{isa}, {machine['system']}, Python {machine['python']}"
        )
        for package, version in {**result.get("versions", {}), "h2load": result.get("h2load")}.items():
            if version:
                plain = version.rpartition("/")[2].rpartition("==")[2]
                # The part after the plus in our own version is the commit, which the table has.
                versions.setdefault(package, set()).add(
                    plain.partition("+")[0] if package == "fused-mlp" else plain
                )
        rows.append(
            [
                f"{name}.json",
                result.get("date", ""),
                result["commit"],
                f"`{clean_command(result['command'])}`",
            ]
        )
    listed = ", ".join(
        f"{package} {' and '.join(sorted(found))}" for package, found in sorted(versions.items())
    )
    return paragraphs(
        f"Machine: {'; '.join(sorted(machines))}. Versions: {listed}.",
        table(["result", "date", "commit", "command"], rows, left=4),
    )
