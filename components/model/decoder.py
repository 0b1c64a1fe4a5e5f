"""A decoder-only transformer, composed from parts that a recipe chooses.

Single-device code: the axes parallelize it from outside. Parameter names are global, also
where a pipeline stage holds only some of the layers; what a Hugging Face Llama calls them is in
`components/convert/llama.py`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from components.attention_windows import window_of
from components.config.model_spec.decoder import DecoderSpec
from components.model.attention import ForwardScope
from components.model.layer import LAYERS, Layer, collect_layers
from components.model.loss import Head, Readout
from components.model.masks import CausalMask
from components.model.mtp import FurtherTokens, MultiTokenPrediction, PredictionDepth
from components.model.parametrization import MuP
from components.model.positions import Placement, Positions
from components.model.products import product_dtype


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
    With ``mtp`` the last stage has depths that predict further tokens, and keeps the embedding.
    """

    embedding: nn.Embedding | None
    embedding_norm: nn.Module | None
    positions: Positions | None
    final_norm: nn.Module | None
    head: Head | None
    mtp: MultiTokenPrediction | None
    places: Callable[[int, torch.device], Tensor]

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        dim, rows = spec.dim, spec.padded_vocab_size
        self.num_layers = spec.num_layers
        self.vocab_size = spec.vocab_size
        self.initialization = spec.initialization
        self.init_from = spec.init_from
        self.embedding = nn.Embedding(rows, dim)
        norm = spec.embedding_norm
        self.embedding_norm = None if norm is None else norm.build(dim=dim)
        self.embedding_scale = math.sqrt(dim) if spec.embedding_scale == "sqrt_dim" else None
        self.dropout = nn.Dropout(spec.dropout)
        kind, leading = LAYERS[spec.norm_placement], spec.leading_layers
        mlps = [spec.dense_mlp or spec.mlp] * leading
        mlps += [spec.mlp] * (spec.num_layers - leading)
        layers = [kind(spec, mlp=mlp) for mlp in mlps]
        heads = layers[0].attention
        turned = {"num_heads": heads.num_heads, "head_dim": heads.turned_dim}
        self.positions = spec.positions.build(dim=dim, **turned)
        numbered = {str(i): self._numbered(layer, i) for i, layer in enumerate(layers)}
        self.layers = nn.ModuleDict(numbered)
        self.parametrization = self._follow(spec)
        self.final_norm = spec.norm.build(dim=dim)
        # Tied, the embedding's weight is used, not shared: a shared parameter parts from its
        # twin in `to_empty`.
        self.readout = Readout(cap=spec.logit_cap, z_loss=spec.z_loss)
        tied = spec.tied_embeddings
        self.head = None if tied else Head(dim=dim, rows=rows, readout=self.readout)
        self.mtp = None
        if spec.mtp is not None:
            self.mtp = spec.mtp.build(
                dim=dim,
                num_layers=spec.num_layers,
                layer=lambda: self._numbered(kind(spec, mlp=spec.mlp), spec.num_layers - 1),
                norm=spec.norm,
            )
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

    def _follow(self, spec: DecoderSpec) -> MuP | None:
        """Let what the layers add be multiplied as a parametrization says."""
        if spec.parametrization is None:
            return None
        followed: MuP = spec.parametrization.build(dim=spec.dim, num_layers=spec.num_layers)
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
