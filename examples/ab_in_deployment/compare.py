"""Reads /metrics of the server and prints requests, mean and median time of each variant."""

import sys
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

MODEL = "digits"


def median_us(buckets: dict[float, float]) -> float:
    """Interpolated within the bucket that the middle request is in, as Prometheus does."""
    below, under = 0.0, 0.0
    middle = max(buckets.values()) / 2
    for bound, count in sorted(buckets.items()):
        if count >= middle:
            return 1e6 * (below + (bound - below) * (middle - under) / (count - under))
        below, under = bound, count
    return float("nan")


with urlopen(f"{sys.argv[1]}/metrics") as page:
    samples = [
        sample
        for family in text_string_to_metric_families(page.read().decode())
        for sample in family.samples
        if sample.labels.get("model") == MODEL
    ]

for what in ("request", "compute"):
    name = f"fused_mlp_{what}_duration_seconds"
    for variant in ("fused", "unfused"):
        mine = [sample for sample in samples if sample.labels.get("variant") == variant]
        count = sum(sample.value for sample in mine if sample.name == f"{name}_count")
        total = sum(sample.value for sample in mine if sample.name == f"{name}_sum")
        buckets = {float(s.labels["le"]): s.value for s in mine if s.name == f"{name}_bucket"}
        print(
            f"{what:8} {variant:8} {count:6.0f} {1e6 * total / count:8.1f} us mean {median_us(buckets):8.1f} us median"
        )
