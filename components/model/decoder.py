"""A decoder-only transformer, composed from parts that a recipe chooses.

Single-device code: the axes parallelize it from outside. Parameter names are global, also
where a pipeline stage holds only some of the layers; what a Hugging Face Llama calls them is in
`components/convert/llama.py`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from components.attention_windows import window_of
from components.errors import RecipeError
from components.model.attention import Attention, ForwardScope
from components.model.initialization import Normal
from components.model.layer import LAYERS, Layer, collect_layers
from components.model.loss import Head, Readout
from components.model.masks import CausalMask
from components.model.mtp import FurtherTokens, MultiTokenPrediction, PredictionDepth
from components.model.parametrization import MuP
from components.model.positions import Placement, Positions
from components.model.products import product_dtype
from components.ranges import BelowOne, Layers, NonNegative, Place, Positive


class Decoder(nn.Module):
    """Predict each next token from all before it.

    Under autocast the residual stream has the products' precision, as in Megatron.

    ``embedding``, ``embedding_norm``, ``final_norm``, ``head``, ``mtp`` and any of the
    ``layers`` may be taken away (set to ``None``, deleted by their key) to make a stage of the
    pipeline of the rest;
    ``positions`` too where they have parameters, which belong to the embedding. A tied last
    stage keeps the embedding, whose rows are its head.

    ``documents``, where given, number the document of each token of the whole sequence; a token
    then attends to its own document only. ``mask``, where given, is that of an earlier stage.
    ``places`` says where in the sequence, of so many ``sequence_parts``, the tokens at hand
    stand.
    ``init_from`` names the folder of weights that a run begins with, or is ``none``. Where a
    recipe says no ``norm_placement``, layers norm what their branches are fed. With a
    ``dense_mlp`` the first ``num_dense_layers`` have it in place of the ``mlp``; with a
    ``logit_cap`` logits are that many times the hyperbolic tangent of their part of it; the
    loss of training has a ``z_loss`` (`penalized_cross_entropy`), which ``readout`` tells; with
    ``mtp`` the last stage has depths that predict further tokens, and keeps the embedding.
    ``embedding_scale`` multiplies what is embedded, not the rows of a tied head, by the root of
    ``dim`` (https://arxiv.org/abs/1706.03762, section 3.4), rounded to its precision. With a
    ``parametrization`` first weights, multipliers and updates follow a smaller model's.

    Raises:
        RecipeError: fewer rows than tokens, no layer, a padding row that does not exist, or
            heads that the positions refuse.
    """

    embedding: nn.Embedding | None
    embedding_norm: nn.Module | None
    positions: Positions | None
    final_norm: nn.Module | None
    head: Head | None
    mtp: MultiTokenPrediction | None
    places: Callable[[int, torch.device], Tensor]

    def __init__(
        self,
        *,
        dim: int,
        num_layers: int,
        vocab_size: int,
        padded_vocab_size: int,
        tied_embeddings: bool,
        positions: Callable[..., Positions],
        attention: Callable[..., Attention],
        mlp: Callable[..., nn.Module],
        norm: Callable[..., nn.Module],
        embedding_norm: Callable[..., nn.Module] | None,
        dropout: BelowOne,
        initialization: Normal,
        init_from: Place,
        norm_placement: Literal["before", "after", "both"] = "before",
        dense_mlp: Callable[..., nn.Module] | None = None,
        num_dense_layers: Layers = 1,
        logit_cap: Positive | None = None,
        mtp: Callable[..., MultiTokenPrediction] | None = None,
        embedding_scale: Literal["none", "sqrt_dim"] = "none",
        z_loss: NonNegative = 0.0,
        parametrization: Callable[..., MuP] | None = None,
    ) -> None:
        super().__init__()
        _check_sizes(num_layers, vocab_size, padded_vocab_size, initialization.padding_row)
        self.num_layers = num_layers
        self.vocab_size = vocab_size
        self.initialization = initialization
        self.init_from = init_from
        self.embedding = nn.Embedding(padded_vocab_size, dim)
        self.embedding_norm = None if embedding_norm is None else embedding_norm(dim=dim)
        self.embedding_scale = math.sqrt(dim) if embedding_scale == "sqrt_dim" else None
        self.dropout = nn.Dropout(dropout)
        kind = LAYERS[norm_placement]
        leading = num_dense_layers if dense_mlp is not None else 0
        layer = partial(kind, dim=dim, attention=attention, norm=norm, dropout=dropout)
        mlps = [dense_mlp or mlp] * leading + [mlp] * (num_layers - leading)
        layers = [layer(mlp=one) for one in mlps]
        heads = layers[0].attention
        turned = {"num_heads": heads.num_heads, "head_dim": heads.turned_dim}
        self.positions = positions(dim=dim, **turned)
        numbered = {str(i): self._numbered(one, i) for i, one in enumerate(layers)}
        self.layers = nn.ModuleDict(numbered)
        self.parametrization = self._follow(parametrization, dim=dim)
        self.final_norm = norm(dim=dim)
        # Tied, the embedding's weight is used, not shared: a shared parameter parts from its
        # twin in `to_empty`.
        self.readout = Readout(cap=logit_cap, z_loss=z_loss)  # tied, of the embedding's rows
        rows = {"dim": dim, "rows": padded_vocab_size}
        self.head = None if tied_embeddings else Head(**rows, readout=self.readout)
        self.mtp = None
        if mtp is not None:
            last = num_layers - 1
            further = partial(mtp, layer=lambda: self._numbered(layer(mlp=mlp), last))
            self.mtp = further(dim=dim, num_layers=num_layers, norm=norm)
        self.sequence_slices = self.sequence_parts = 1
        # The first token at 0, each of the others one further.
        self.places = lambda length, device: torch.arange(length, device=device)

    def forward(
        self,
        inputs: Int[Tensor, "batch seq"] | Float[Tensor, "batch seq dim"],
        *,
        documents: Int[Tensor, "batch whole"] | None = None,
        mask: CausalMask | None = None,
        targets: Int[Tensor, "batch seq"] | None = None,
        counted: Bool[Tensor, "batch seq"] | None = None,
        further: Sequence[FurtherTokens] = (),
    ) -> Tensor:
        """Return logits, (batch, seq, padded_vocab); of ``targets`` the loss, in nats a token.

        Targets that are not ``counted`` add 0 to its sum, which is divided by all. Given
        ``further`` tokens for each depth of ``mtp``, losses of all depths follow, (1 + depth).
        ``inputs`` are tokens, or hidden states from the stage before. Where the final norm is
        absent, the result are hidden states for the stage after, (batch, seq, dim).
        """
        places = self._places(inputs)
        placement = self.positions(places) if self.positions else Placement(places=places)
        hidden = inputs if inputs.is_floating_point() else self._embed(inputs, placement)
        scope = self._scope(hidden, placement, documents, mask)
        for layer in cast("Iterable[Layer]", self.layers.values()):
            hidden = layer(hidden, scope.within(layer.attention.window))
        if self.final_norm is None:
            return hidden
        hidden = self.final_norm(hidden)
        loss = self._read(hidden, targets, counted)
        if not further:
            return loss
        assert self.mtp is not None, "further tokens were given to a model without depths"
        losses, depths = [loss], cast("Iterable[PredictionDepth]", self.mtp.values())
        for depth, one in zip(depths, further, strict=True):
            within = scope.within(depth.layer.attention.window)
            hidden = depth(hidden, self._embed(one.tokens, placement), within)
            losses.append(self._read(hidden, one.targets, one.counted))
        return torch.stack(losses)

    def _follow(self, parametrization: Callable[..., MuP] | None, *, dim: int) -> MuP | None:
        """Let what the layers add be multiplied as a parametrization says."""
        if parametrization is None:
            return None
        followed = parametrization(dim=dim, num_layers=self.num_layers)
        for layer in cast("Iterable[Layer]", self.layers.values()):
            layer.branch_multiplier = followed.branch_multiplier
        return followed

    def _numbered(self, layer: Layer, index: int) -> Layer:
        """Let a layer turn and look back as the one at ``index`` does."""
        assert self.positions is not None
        layer.attention.turns = self.positions.turns(index)
        layer.attention.window = window_of(layer.attention.windows, index)
        return layer

    def _read(self, hidden: Tensor, targets: Tensor | None, counted: Tensor | None) -> Tensor:
        """Compare states with the vocabulary's rows."""
        if self.parametrization is not None:
            # Not the logits, which are more, and of which the loss makes some at a time.
            hidden = hidden * self.parametrization.output_multiplier
        if self.head is not None:
            return cast("Tensor", self.head(hidden, targets, counted))
        assert self.embedding is not None, "a tied last stage needs the embedding's rows"
        return cast("Tensor", self.readout(hidden, self.embedding.weight, targets, counted))

    def _scope(
        self,
        hidden: Tensor,
        placement: Placement,
        documents: Tensor | None,
        mask: CausalMask | None,
    ) -> ForwardScope:
        """Make what the layers share, and let one of each window prepare its own."""
        length = len(placement.places) * self.sequence_parts
        scope = ForwardScope(placement=placement, documents=documents, mask=mask, length=length)
        layers = collect_layers(self).values()
        for window, layer in {one.attention.window: one for one in layers}.items():
            layer.attention.prepare(hidden, scope.within(window))
        return scope

    def mask(
        self,
        inputs: Int[Tensor, "batch seq"] | Float[Tensor, "batch seq dim"],
        documents: Int[Tensor, "batch whole"] | None,
    ) -> CausalMask:
        """Make the mask of a microbatch, to be given to all stages of a rank."""
        return CausalMask(places=self._places(inputs), documents=documents)

    def _places(self, inputs: Tensor) -> Int[Tensor, " seq"]:
        # Hidden states may travel in equal slices of the tokens; these are always all at hand.
        slices = self.sequence_slices if inputs.is_floating_point() else 1
        return self.places(inputs.shape[1] * slices, inputs.device)

    def loss(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        *,
        documents: Int[Tensor, "batch whole"] | None = None,
    ) -> Float[Tensor, ""]:
        """Average the cross-entropy of ``targets``, in nats a token, over all rows."""
        # Through `self(...)`, not `self.forward(...)`: the hooks of `fully_shard` must run.
        return cast("Tensor", self(tokens, documents=documents, targets=targets))

    def _embed(self, tokens: Tensor, placement: Placement) -> Tensor:
        assert self.embedding is not None, "tokens were given to a stage without an embedding"
        hidden: Tensor = self.embedding(tokens)
        if self.embedding_scale is not None:
            hidden = hidden.to(product_dtype(hidden))
            hidden = hidden * torch.tensor(self.embedding_scale, dtype=hidden.dtype)
        if placement.embedded is not None:
            hidden = hidden + placement.embedded
        if self.parametrization is not None:
            hidden = hidden * self.parametrization.embedding_multiplier
        hidden = hidden.to(product_dtype(hidden))
        if self.embedding_norm is not None:
            hidden = self.embedding_norm(hidden)
        return cast("Tensor", self.dropout(hidden))


def _check_sizes(
    num_layers: int, vocab_size: int, padded_vocab_size: int, padding_row: int | None
) -> None:
    if num_layers < 1:
        problem = f"{num_layers} is no layer at all"
        raise RecipeError("model.num_layers", problem, "use 1 or more")
    if padded_vocab_size < vocab_size:
        problem = f"{padded_vocab_size:,} rows cannot hold {vocab_size:,} tokens"
        raise RecipeError("model.padded_vocab_size", problem, f"use {vocab_size:,} or more")
    if padding_row is not None and not 0 <= padding_row < padded_vocab_size:
        problem = f"there is no row {padding_row} among {padded_vocab_size:,}"
        remedy = f"use 0 to {padded_vocab_size - 1:,}, or null for none"
        raise RecipeError("model.initialization.padding_row", problem, remedy)
