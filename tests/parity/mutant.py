"""One rank of proofs with one mistake each: ``mutant.py NAME FOLDER [FOLDER] NAME FOLDER ...``.

Started in place of the real rank; everything but the one function that a mutation replaces is
the program itself. A name holds for the folders that follow it, and is undone before the next.
"""

import sys
from collections.abc import Callable, Iterable

import pytest
import torch.distributed as dist
from torch import Tensor

from components.distributed import collectives, experts, local_parameters
from components.distributed.context import ContextCore
from components.distributed.data import DataParallel
from components.distributed.grad_buckets import GradBucket
from components.distributed.mesh import Mesh, ParamGroupMesh
from components.distributed.weight_shards import squared_norm
from components.engine import mesh_engine
from components.model.attention import AttentionCore
from components.parity import rank

SPOILT = "layers.1.mlp.up.weight"
HALVED = "layers.0.attention_norm.weight"


def change_nothing(patch: pytest.MonkeyPatch) -> None:
    pass


def drop_one_reduction(patch: pytest.MonkeyPatch) -> None:
    """One weight keeps its own rank's gradient, as if nobody else had any."""
    original = GradBucket.start_reduce

    def mutated(self: GradBucket) -> None:
        own = self._made_sums().clone()
        original(self)
        for place, shard in enumerate(self.layout.shards):
            if shard.name == SPOILT:
                self._wait()
                assert self._mine is not None
                rank = self.layout.param_mesh.shard.get_local_rank() if shard.split else 0
                self.layout.local_rows(self._mine, place).copy_(
                    self.layout.local_rows(own[rank : rank + 1], place)
                )

    patch.setattr(GradBucket, "start_reduce", mutated)


def halve_one_norms_gradient(patch: pytest.MonkeyPatch) -> None:
    original = DataParallel.reduce_gradients

    def mutated(self: DataParallel) -> None:
        original(self)
        (shard,) = [shard for shard in self.shards if shard.name == HALVED]
        assert shard.parameter.grad is not None
        shard.parameter.grad.mul_(0.5)

    patch.setattr(DataParallel, "reduce_gradients", mutated)


def miss_a_sixth_of_the_global_norm(patch: pytest.MonkeyPatch) -> None:
    """Every gradient is right; clipping by another norm hardly shows in Adam's steps."""
    patch.setattr(mesh_engine, "squared_norm", lambda shards: squared_norm(shards) * (25 / 36))


def let_tied_ends_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mesh_engine, "sum_tied_gradients", lambda *_: None)


def keep_slices_of_norm_gradients(patch: pytest.MonkeyPatch) -> None:
    """Sequence parallelism: each rank's norms learn from its own slice of the sequence."""
    own = staticmethod(lambda ctx, gradient: (gradient, None))
    patch.setattr(local_parameters._SumGradients, "backward", own)


def read_the_same_samples(patch: pytest.MonkeyPatch) -> None:
    """Every data rank takes the first one's share of a step."""
    patch.setattr(Mesh, "data_rank", property(lambda self: 0))


def attend_to_own_slice_only(patch: pytest.MonkeyPatch) -> None:
    """Each context rank asks no other for keys and values, and the loss falls all the same."""
    patch.setattr(ContextCore, "forward", AttentionCore.forward)


def divide_expert_gradients_twice(patch: pytest.MonkeyPatch) -> None:
    """As if experts saw the tokens of their own rank alone."""
    original = DataParallel._divisor

    def mutated(self: DataParallel, param_mesh: ParamGroupMesh) -> int:
        again = self._mesh.layout.expert if param_mesh is self._mesh.experts else 1
        return original(self, param_mesh) * again

    patch.setattr(DataParallel, "_divisor", mutated)


def lose_a_token_in_dispatch(patch: pytest.MonkeyPatch) -> None:
    """One of the pairs that leave rank 1 reaches nobody."""

    def mutated(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        everyones = collectives.gather_rows(rows, group)
        if not rows.is_floating_point():
            everyones[-1, 0] = -1_000
        return everyones

    patch.setattr(experts, "gather_rows", mutated)


def spoil_two_ranks_and_lose_a_third(patch: pytest.MonkeyPatch) -> None:
    """One start of the command then sees both: a layout that differs, and one that fails."""
    drop_one_reduction(patch)
    original = DataParallel.reduce_gradients

    def mutated(self: DataParallel) -> None:
        if self._mesh.data_rank == 2:
            raise ValueError("this rank was made to fail")
        original(self)

    patch.setattr(DataParallel, "reduce_gradients", mutated)


def main(words: Iterable[str]) -> None:
    name = ""
    for word in words:
        if word in globals():
            name = word
            continue
        mutate: Callable[[pytest.MonkeyPatch], None] = globals()[name]
        with pytest.MonkeyPatch.context() as patch:
            mutate(patch)
            rank.main([word])


if __name__ == "__main__":
    main(sys.argv[1:])
