"""How long does a rank of a large world take to build its mesh and groups?

Every rank of a job builds them before its first step. This benchmark builds them for one rank,
in a new process with one thread; the other ranks are torch's fake process group. The layout is
the recipe's with a larger data axis: 1,024 ranks, and 12,288 ranks, the tiles of the largest
published run of any recipe.

    python -m benchmarks.planning.worlds recipe=NAME cluster=NAME
"""

import time
from collections.abc import Mapping

import torch
import torch.distributed as dist

from benchmarks.entry import run_script
from benchmarks.machine import call_in_process
from benchmarks.ratios import Ratio, save_benchmark
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.distributed.mesh import build_mesh
from components.torch_internals.operators import FakeStore

MOST_SECONDS = 30.0
WORLDS = (1_024, 12_288)


def time_build(words: list[str], ranks: int) -> float:
    """Return the seconds to build the mesh of rank 0; the process must be new."""
    torch.set_num_threads(1)
    published = compose_recipe(read_point(words))
    factor = ranks // published.cluster.ranks
    tokens = published.budget.global_batch_tokens * factor
    batch = (f"budget.global_batch_tokens={tokens}", f"budget.total_tokens={tokens}")
    data = f"parallelism.data={published.parallelism.data * factor}"
    parallelism = compose_recipe(read_point([*words, data, *batch])).parallelism
    start = time.perf_counter()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = build_mesh("cpu", parallelism)
    assert mesh.layout.num_ranks == ranks
    return time.perf_counter() - start


def ratios_of(seconds: Mapping[int, float]) -> list[Ratio]:
    """Compare the seconds of each world with the limit."""
    return [
        Ratio(f"{n:,} ranks", "a limit", x, at_most=MOST_SECONDS, unit="s")
        for n, x in seconds.items()
    ]


def main(words: list[str]) -> int:
    """Measure and save the result."""
    seconds = {ranks: call_in_process(time_build, words, ranks) for ranks in WORLDS}
    shape = {"recipe": words, "ranks": WORLDS, "threads": 1}
    return save_benchmark("worlds", shape, {"seconds": seconds}, ratios_of(seconds))


if __name__ == "__main__":
    run_script(main)
