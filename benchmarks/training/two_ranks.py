"""Two ranks with one thread each for a benchmark, over the loopback or a virtual link.

The script of the benchmark starts itself once per rank. Variants alternate; the time of a call
is that of the slower rank. The virtual link connects two Linux network namespaces by a pair of
devices with a token bucket each. It needs root; otherwise only the loopback is available.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in its __all__

from benchmarks.machine import SecondsByName
from components.child_process import python_environment

RANKS = 2
SecondsBySubject = Mapping[str, SecondsByName]
# The bucket size is the burst; it is small, so that short messages are delayed too.
_BURST, _LATENCY = "256kb", "200ms"


@dataclass(frozen=True)
class RankHost:
    """How to start a rank: a command prefix and additional environment variables."""

    words: Sequence[str]
    environment: Mapping[str, str]


def can_create_link() -> bool:
    """Return whether this process can create namespaces and devices."""
    return hasattr(os, "geteuid") and os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc")))


LOOPBACK = (RankHost((), {"GLOO_SOCKET_IFNAME": "lo"}),) * 2


@contextmanager
def create_link(gigabits: float) -> Iterator[tuple[RankHost, RankHost]]:
    """Create two namespaces and a link with a rate per direction; remove them at the end.

    Raises:
        subprocess.CalledProcessError: the kernel lacks a feature.
    """
    namespaces = [f"kochbuch-{os.getpid()}-{end}" for end in range(2)]
    devices = ["end0", "end1"]
    created: list[str] = []
    try:
        for space in namespaces:
            _run("ip", "netns", "add", space)
            created.append(space)
        peers = (*("type", "veth", "peer", "name", devices[1]), "netns", namespaces[1])
        _run("ip", "link", "add", devices[0], "netns", namespaces[0], *peers)
        for end, (space, device) in enumerate(zip(namespaces, devices, strict=True)):
            _run("ip", "-n", space, "address", "add", f"10.77.0.{end + 1}/24", "dev", device)
            _run("ip", "-n", space, "link", "set", device, "up")
            bucket = ("tbf", "rate", f"{gigabits}gbit", "burst", _BURST, "latency", _LATENCY)
            _run("tc", "-n", space, "qdisc", "replace", "dev", device, "root", *bucket)
        ends = zip(namespaces, devices, strict=True)
        first, second = (
            RankHost(("ip", "netns", "exec", space), {"GLOO_SOCKET_IFNAME": device})
            for space, device in ends
        )
        yield first, second
    finally:
        for space in created:  # removes the devices too
            _run("ip", "netns", "delete", space)


def _run(*words: str) -> None:
    subprocess.run(words, env=python_environment(), check=True)


def measure_ranks(
    script: str, hosts: Sequence[RankHost], *words: str
) -> dict[str, SecondsByName]:
    """Run ``python -m script rank folder *words`` for both ranks; return their seconds."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [*host.words, sys.executable, "-m", script, str(rank), folder, *words],
                env=python_environment(os.environ | dict(host.environment)),
            )
            for rank, host in enumerate(hosts)
        ]
        assert [rank.wait() for rank in ranks] == [0] * RANKS
        seconds: dict[str, SecondsByName] = json.loads(
            Path(folder, "seconds.json").read_text("utf-8")
        )
        return seconds


def run_rank(rank: int, folder: Path, measure: Callable[[], SecondsBySubject]) -> None:
    """Join the other rank, measure, and write the seconds on rank 0."""
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    seconds = measure()
    if rank == 0:
        (folder / "seconds.json").write_text(json.dumps(seconds), "utf-8")
    dist.destroy_process_group()


def time_alternating(
    calls: Mapping[str, Callable[[], object]], *, warmup: int, rounds: int
) -> SecondsByName:
    """Time each call once per round, after warm-up rounds."""
    seconds: SecondsByName = {name: [] for name in calls}
    for _ in range(warmup + rounds):
        for name, call in calls.items():
            dist.barrier()
            start = time.perf_counter()
            call()
            slower = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(slower, dist.ReduceOp.MAX)
            seconds[name].append(slower.item())
    return {name: values[warmup:] for name, values in seconds.items()}
