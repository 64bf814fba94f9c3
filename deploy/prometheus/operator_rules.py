# SPDX-License-Identifier: Apache-2.0
"""`python deploy/prometheus/operator_rules.py` renews the PrometheusRule of deploy/kubernetes from rules.yaml and
alerts.yaml, whose text it keeps: one source for Prometheus alone and under its operator."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
MADE = HERE.parent / "kubernetes/components/monitoring/prometheus-rule.yaml"
HEAD = """\
# Made of deploy/prometheus/rules.yaml and alerts.yaml by operator_rules.py there: change those.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: fused-mlp
spec:
  groups:
"""


def render() -> str:
    lines = []
    for name in ("rules.yaml", "alerts.yaml"):
        _, _, groups = (HERE / name).read_text().partition("\ngroups:\n")
        lines += [f"  {line}" if line else "" for line in groups.splitlines()]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    MADE.write_text(render())
