"""Embedding, head and loss over a vocabulary whose rows are dealt to the tensor ranks.

Each rank looks up the tokens whose rows it has, and the lookups are added up. It computes the
logits of its own rows as ``components.model.loss`` does; three numbers a token pass between
ranks, whole logits never.
"""

from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from typing_extensions import override

from components.distributed.tensor_styles import place_parameters
from components.errors import RecipeError
from components.model.loss import Readout, Softmax, chunks, linear_cross_entropy


class SplitEmbedding(nn.Embedding):
    """Look tokens up in this rank's equal part of the rows, and add what all ranks found.

    Hidden states go out as they travel between layers, ``Shard(1)`` or ``Replicate()``.
    """

    def __init__(
        self, embedding: nn.Embedding, mesh: DeviceMesh, *, between: Placement
    ) -> None:
        rows, dim = embedding.weight.shape
        super().__init__(rows, dim, device="meta")
        self.weight = embedding.weight
        self.mesh = mesh
        self.between = between
        place_parameters(self, mesh, Shard(0))

    @override
    def forward(self, input: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch slice dim"]:
        """Raise RecipeError where the sequence cannot be sliced."""
        length, ranks = input.shape[1], self.mesh.size()
        if self.between.is_shard() and length % ranks:
            raise RecipeError(
                "budget.sequence_length",
                f"{length:,} tokens cannot be sliced for {ranks} tensor ranks",
                f"use {length + ranks - length % ranks:,}, "
                "or parallelism.sequence_parallel=false",
            )
        rows = cast("DTensor", self.weight).to_local()
        row, elsewhere = _rows_here(input, self.mesh, len(rows))
        found = F.embedding(row, rows).masked_fill(elsewhere[..., None], 0.0)
        share = DTensor.from_local(found, self.mesh, [Partial()], run_check=False)
        return share.redistribute(placements=[self.between]).to_local()


class SplitReadout(Readout):
    """Take the place of a ``Readout`` where each rank has an equal part of the rows.

    ``hidden`` comes in as it travels between layers, ``Shard(1)`` or ``Replicate()``. Logits
    are gathered whole, for evaluation; the loss is the same on all ranks.
    """

    def __init__(self, mesh: DeviceMesh, *, between: Placement) -> None:
        super().__init__()
        self.mesh = mesh
        self.between = between
        self.softmax = SplitSoftmax(mesh)

    @override
    def forward(
        self,
        hidden: Float[Tensor, "batch slice dim"],
        weight: Float[Tensor, "rows dim"],
        targets: Int[Tensor, "batch seq"] | None,
    ) -> Float[Tensor, "batch seq rows"] | Float[Tensor, ""]:
        rows = cast("DTensor", weight).to_local()
        placed = DTensor.from_local(hidden, self.mesh, [self.between], run_check=False)
        whole = placed.redistribute(placements=[Replicate()]).to_local(
            grad_placements=[Partial()]
        )
        if targets is not None:
            return linear_cross_entropy(whole, rows, targets, self.softmax)
        logits = DTensor.from_local(
            F.linear(whole, rows), self.mesh, [Shard(2)], run_check=False
        )
        return logits.full_tensor()


class SplitSoftmax(Softmax):
    """Take loss and gradient from the logits of this rank's rows and the others' statistics."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    @override
    def to_gradient(
        self, logits: Float[Tensor, "tokens rows"], targets: Int[Tensor, " tokens"]
    ) -> Float[Tensor, ""]:
        precision = torch.promote_types(logits.dtype, torch.float32)
        row, elsewhere = _rows_here(targets[:, None], self.mesh, logits.shape[1])
        # For each token: the largest logit, the sum of exponentials, the target's logit.
        share = logits.new_empty(3, len(targets), dtype=precision)
        share[2] = logits.gather(1, row).masked_fill(elsewhere, 0.0)[:, 0]
        for tokens in chunks(logits):
            chunk = logits[tokens].to(precision)
            share[0, tokens] = chunk.amax(1)
            share[1, tokens] = (chunk - share[0, tokens, None]).exp_().sum(1)
        placed = DTensor.from_local(share, self.mesh, [Shard(0)], run_check=False)
        shares = placed.full_tensor().view(-1, *share.shape)  # (ranks, 3, tokens)
        largest = shares[:, 0].amax(0)
        sums = (shares[:, 1] * (shares[:, 0] - largest).exp()).sum(0)
        target = shares[:, 2].sum(0)
        for tokens in chunks(logits):
            chunk = logits[tokens].to(precision)
            chunk.sub_(largest[tokens, None]).exp_().div_(sums[tokens, None])
            chunk.scatter_add_(1, row[tokens], elsewhere[tokens].to(precision) - 1)
            if chunk.dtype != logits.dtype:
                logits[tokens] = chunk
        return (sums.log() - (target - largest)).sum()


def _rows_here(tokens: Tensor, mesh: DeviceMesh, rows: int) -> tuple[Tensor, Tensor]:
    """Number the tokens' rows within this rank's ``rows``; where another has them, say so."""
    row = tokens - mesh.get_local_rank() * rows
    elsewhere = (row < 0) | (row >= rows)
    return row.masked_fill(elsewhere, 0), elsewhere
