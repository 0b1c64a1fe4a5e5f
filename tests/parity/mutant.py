"""One rank of proofs with a fault each: ``mutant.py NAME FOLDER [FOLDER] NAME FOLDER ...``.

Started instead of the real rank. A mutation replaces one function; everything else is
unchanged. A name applies to the folders that follow it, and is undone before the next name.
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
    """One weight keeps the gradient of its own rank."""
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
    """All gradients are right, and Adam's steps hardly depend on the clipping norm."""
    patch.setattr(mesh_engine, "squared_norm", lambda shards: squared_norm(shards) * (25 / 36))


def let_tied_ends_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mesh_engine, "sum_tied_gradients", lambda *_: None)


def keep_slices_of_norm_gradients(patch: pytest.MonkeyPatch) -> None:
    """Norms get the gradient of their rank's slice of the sequence only."""
    own = staticmethod(lambda ctx, gradient: (gradient, None))
    patch.setattr(local_parameters._SumGradients, "backward", own)


def read_the_same_samples(patch: pytest.MonkeyPatch) -> None:
    """All data ranks read the samples of the first."""
    patch.setattr(Mesh, "data_rank", property(lambda self: 0))


def attend_to_own_slice_only(patch: pytest.MonkeyPatch) -> None:
    """Context ranks attend only to their own keys; the loss still falls."""
    patch.setattr(ContextCore, "forward", AttentionCore.forward)


def divide_expert_gradients_twice(patch: pytest.MonkeyPatch) -> None:
    """Divide as if experts got only the tokens of their own rank."""
    original = DataParallel._divisor

    def mutated(self: DataParallel, param_mesh: ParamGroupMesh) -> int:
        again = self._mesh.layout.expert if param_mesh is self._mesh.experts else 1
        return original(self, param_mesh) * again

    patch.setattr(DataParallel, "_divisor", mutated)


def lose_a_token_in_dispatch(patch: pytest.MonkeyPatch) -> None:
    """One pair of token and expert from rank 1 is lost."""

    def mutated(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        everyones = collectives.gather_rows(rows, group)
        if not rows.is_floating_point():
            everyones[-1, 0] = -1_000
        return everyones

    patch.setattr(experts, "gather_rows", mutated)


def spoil_two_ranks_and_lose_a_third(patch: pytest.MonkeyPatch) -> None:
    """One command then has a layout with a difference and a layout that fails."""
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
