"""Two ranks with one thread each for a benchmark, over the loopback or a virtual link.

The script of the benchmark starts itself once per rank. Variants alternate; the time of a call
is that of the slower rank.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in its __all__

from benchmarks.training.link import RankHost
from components.child_process import python_environment

RANKS = 2
SecondsByName = dict[str, list[float]]
SecondsBySubject = Mapping[str, SecondsByName]


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
