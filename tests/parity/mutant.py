"""One rank of a proof in which one thing is wrong: ``mutant.py NAME FOLDER [FOLDER]``.

Started in place of the real rank; everything but the one function that a mutation replaces is
the program itself.
"""

import sys
from collections.abc import Callable, Sequence

from components.parallelism import tensor_styles
from components.parallelism.data import DataParallel
from components.parallelism.gradients import global_norm
from components.parallelism.mesh import Family, Mesh
from components.parallelism.shards import WeightShard
from components.parity import rank
from components.train import engine

SPOILT = "layers.1.mlp.up.weight"
HALVED = "layers.0.attention_norm.weight"


def drop_one_reduction() -> None:
    """One weight keeps its own rank's gradient, as if nobody else had any."""
    original = DataParallel._reduce

    def mutated(self: DataParallel, bucket: Sequence[WeightShard], family: Family) -> None:
        own = {shard.name: shard.weight.grad for shard in bucket}
        original(self, bucket, family)
        for shard in bucket:
            if shard.name == SPOILT:
                shard.parameter.grad = own[shard.name]

    DataParallel._reduce = mutated  # type: ignore[method-assign]  # on purpose


def halve_one_norms_gradient() -> None:
    original = DataParallel.reduce

    def mutated(self: DataParallel) -> None:
        original(self)
        (shard,) = [shard for shard in self.shards if shard.name == HALVED]
        assert shard.parameter.grad is not None
        shard.parameter.grad.mul_(0.5)

    DataParallel.reduce = mutated  # type: ignore[method-assign]  # on purpose


def miss_a_sixth_of_the_global_norm() -> None:
    """Every gradient is right; clipping by another norm hardly shows in Adam's steps."""
    engine.global_norm = lambda shards: global_norm(shards) * (5 / 6)  # type: ignore[attr-defined]  # on purpose


def let_tied_ends_part() -> None:
    engine.sum_tied_gradients = lambda *_: None  # type: ignore[attr-defined]  # on purpose


def keep_slices_of_norm_gradients() -> None:
    """Sequence parallelism: each rank's norms learn from its own slice of the sequence."""
    tensor_styles._share = lambda parameter: parameter.to_local()


def read_the_same_samples() -> None:
    """Every data rank takes the first one's share of a step."""
    Mesh.data_rank = property(lambda self: 0)  # type: ignore[assignment]  # on purpose


def lose_a_rank() -> None:
    original = DataParallel.reduce

    def mutated(self: DataParallel) -> None:
        if self._mesh.data_rank == 1:
            raise ValueError("this rank was made to fail")
        original(self)

    DataParallel.reduce = mutated  # type: ignore[method-assign]  # on purpose


def main(name: str, paths: Sequence[str]) -> None:
    mutate: Callable[[], None] = globals()[name]
    mutate()
    rank.main(paths)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
