"""How long does a rank of a large world take to build its mesh and groups?

Every rank of a job does this before its first step. Here one rank does, in a process of its own
with one thread, for worlds whose other ranks are only counted (torch's fake process group): the
recipe's layout with its data axis widened to 1,024 ranks, and to 12,288, the tiles of the
largest published run of any recipe.

    python -m benchmarks.planning.worlds recipe=NAME cluster=NAME
"""

import time
from collections.abc import Mapping

import torch
import torch.distributed as dist

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.machine import apart
from benchmarks.ratios import Ratio, keep_result
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.distributed.mesh import build_mesh
from components.torch_internals.operators import FakeStore

MOST_SECONDS = 30.0
WORLDS = (1_024, 12_288)


def seconds_to_build(words: list[str], ranks: int) -> float:
    """Build the mesh of rank 0 and return how long it took; the process must be new."""
    torch.set_num_threads(1)
    published = compose_recipe(read_point(words))
    wider = ranks // published.cluster.ranks
    tokens = published.budget.global_batch_tokens * wider
    batch = (f"budget.global_batch_tokens={tokens}", f"budget.total_tokens={tokens}")
    data = f"parallelism.data={published.parallelism.data * wider}"
    parallelism = compose_recipe(read_point([*words, data, *batch])).parallelism
    began = time.perf_counter()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = build_mesh("cpu", parallelism)
    assert mesh.layout.ranks == ranks
    return time.perf_counter() - began


def ratios_of(seconds: Mapping[int, float]) -> list[Ratio]:
    """Set the seconds of each world against the limit."""
    return [
        Ratio(f"{n:,} ranks", "a limit", x, at_most=MOST_SECONDS, unit="s")
        for n, x in seconds.items()
    ]


def main(words: list[str]) -> int:
    """Measure, and keep the result."""
    seconds = {ranks: apart(seconds_to_build, words, ranks) for ranks in WORLDS}
    context = circumstances(
        peer="none: our limit",
        convention="wall clock of one rank, one thread, fake process group",
        shape={"recipe": words, "ranks": WORLDS, "threads": 1},
        packages=("torch",),
    )
    return keep_result("worlds", context | {"seconds": seconds}, ratios_of(seconds))


if __name__ == "__main__":
    enter(main)
