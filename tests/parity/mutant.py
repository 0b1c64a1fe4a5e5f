"""One rank of a proof in which one thing is wrong: ``mutant.py NAME FOLDER [FOLDER]``.

Started in place of the real rank; everything but the one function that a mutation replaces is
the program itself.
"""

import sys
from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor

from components.model.attention import AttentionCore
from components.parallelism import exchange, experts, tensor_styles
from components.parallelism.context import ContextCore
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


def attend_to_own_slice_only() -> None:
    """Each context rank asks no other for keys and values, and the loss falls all the same."""
    ContextCore.forward = AttentionCore.forward  # type: ignore[method-assign]  # on purpose


def divide_expert_gradients_twice() -> None:
    """As if experts saw the tokens of their own rank alone."""
    original = DataParallel._divisor

    def mutated(self: DataParallel, family: Family) -> int:
        again = self._mesh.degrees.expert if family is self._mesh.experts else 1
        return original(self, family) * again

    DataParallel._divisor = mutated  # type: ignore[method-assign]  # on purpose


def lose_a_token_in_dispatch() -> None:
    """One of the pairs that leave rank 1 reaches nobody."""

    def mutated(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        everyones = exchange.gather_rows(rows, group)
        if not rows.is_floating_point():
            everyones[-1, 0] = -1_000
        return everyones

    experts.gather_rows = mutated  # type: ignore[attr-defined]  # on purpose


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
