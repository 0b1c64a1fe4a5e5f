"""Decoder-only transformer, composed from parts that a recipe chooses, for a single device.

Parameter names are global, also in a stage; `components/convert/llama.py` has Hugging Face's.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from components.attention_windows import window_of
from components.config.model_spec.decoder import DecoderSpec
from components.model.attention import AttentionContext
from components.model.layer import Layer, collect_layers
from components.model.linear import product_dtype
from components.model.loss import Head, Readout
from components.model.masks import CausalMask
from components.model.mtp import MTPTargets, MultiTokenPrediction, PredictionDepth
from components.model.parametrization import Multipliers
from components.model.positions import PositionEncoding, Positions


class Decoder(nn.Module):
    """Decoder: predicts each token from all earlier tokens.

    Under autocast the residual stream has the precision of the matrix products, as in Megatron.
    A pipeline stage is a decoder without some of its parts: ``embedding``, ``embedding_norm``,
    ``final_norm``, ``head`` and ``mtp`` may be set to ``None``, and ``layers`` deleted by key;
    so may ``positions`` with parameters, which belong to the embedding's stage. A tied last
    stage has the embedding as its head. With ``mtp``, the last stage has depths that predict
    further tokens, and the embedding. ``position_ids`` returns the positions of this rank's
    tokens in the sequence, which has ``sequence_parts`` parts.
    """

    embedding: nn.Embedding | None
    embedding_norm: nn.Module | None
    positions: Positions | None
    final_norm: nn.Module | None
    head: Head | None
    mtp: MultiTokenPrediction | None
    position_ids: Callable[[int, torch.device], Tensor]

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        dim, rows = spec.dim, spec.padded_vocab_size
        self.num_layers = spec.num_layers
        self.vocab_size = spec.vocab_size
        self.initialization = spec.initialization
        self.init_from = spec.init_from
        self.embedding = nn.Embedding(rows, dim)
        norm = spec.embedding_norm
        self.embedding_norm = None if norm is None else norm.build_part(dim=dim)
        self.embedding_scale = math.sqrt(dim) if spec.embedding_scale == "sqrt_dim" else None
        self.dropout = nn.Dropout(spec.dropout)
        layers = [Layer(spec.shape_of(index)) for index in range(spec.num_layers)]
        self.num_branches = sum(len(layer.branches) for layer in layers)
        head_shape = {
            "num_heads": spec.attention.num_heads,
            "head_dim": spec.attention.rope_dim,
        }
        self.positions = spec.positions.build_part(dim=dim, **head_shape)
        numbered = {str(i): self._numbered(layer, i) for i, layer in enumerate(layers)}
        self.layers = nn.ModuleDict(numbered)
        self.final_norm = spec.norm.build_part(dim=dim)
        # A tied head reads the embedding's weight. It does not share the parameter: `to_empty`
        # would turn a shared parameter into two.
        self.readout = Readout(cap=spec.logit_cap, z_loss=spec.z_loss)
        tied = spec.tied_embeddings
        self.head = None if tied else Head(dim=dim, rows=rows, readout=self.readout)
        self.mtp = None
        if spec.mtp is not None:
            self.mtp = spec.mtp.build_part(
                dim=dim,
                num_layers=spec.num_layers,
                layer=lambda: self._numbered(Layer(spec), spec.num_layers - 1),
                norm=spec.norm,
            )
        self.parametrization = self._follow(spec)
        self.sequence_slices = self.sequence_parts = 1
        # Default: positions 0, 1, 2, ...
        self.position_ids = lambda length, device: torch.arange(length, device=device)

    def forward(
        self,
        inputs: Int[Tensor, "batch seq"] | Float[Tensor, "batch seq dim"],
        *,
        documents: Int[Tensor, "batch whole"] | None = None,
        mask: CausalMask | None = None,
        targets: Int[Tensor, "batch seq"] | None = None,
        counted: Bool[Tensor, "batch seq"] | None = None,
        further: Sequence[MTPTargets] = (),
    ) -> Tensor:
        """Return logits, (batch, seq, padded_vocab), or with ``targets`` the loss.

        The loss is in nats per token. Targets that are not ``counted`` add 0 to its sum; the
        sum is divided by the number of all targets. Given ``further`` tokens for each depth of
        ``mtp``, the result is (1 + depth) losses. ``inputs`` are tokens, or hidden states of
        the previous stage. ``documents`` numbers the document of each token of the whole
        sequence; a token attends to its own only. ``mask`` is an earlier stage's. Without a
        final norm, the result is the hidden states for the next stage, (batch, seq, dim).
        """
        position_ids = self._position_ids(inputs)
        encoding = (
            self.positions(position_ids)
            if self.positions
            else PositionEncoding(position_ids=position_ids)
        )
        hidden = inputs if inputs.is_floating_point() else self._embed(inputs, encoding)
        scope = self._scope(hidden, encoding, documents, mask)
        for layer in cast("Iterable[Layer]", self.layers.values()):
            hidden = layer(hidden, scope.for_window(layer.layer_window))
        if self.final_norm is None:
            return hidden
        hidden = self.final_norm(hidden)
        loss = self._read(hidden, targets, counted)
        if not further:
            return loss
        assert self.mtp is not None, "further tokens were given to a model without depths"
        losses, depths = [loss], cast("Iterable[PredictionDepth]", self.mtp.values())
        for depth, target in zip(depths, further, strict=True):
            depth_scope = scope.for_window(depth.layer.layer_window)
            hidden = depth(hidden, self._embed(target.tokens, encoding), depth_scope)
            losses.append(self._read(hidden, target.targets, target.counted))
        return torch.stack(losses)

    def _follow(self, spec: DecoderSpec) -> Multipliers | None:
        """Set the layers' branch multiplier from the parametrization; return the latter."""
        if spec.parametrization is None:
            return None
        parametrization: Multipliers = spec.parametrization.build_part(
            dim=spec.dim, num_layers=spec.num_layers
        )
        for layer in collect_layers(self).values():
            layer.branch_multiplier = parametrization.branch_multiplier
        return parametrization

    def _numbered(self, layer: Layer, index: int) -> Layer:
        """Set the RoPE flag and the window of the layer at ``index``."""
        assert self.positions is not None
        if layer.attention is not None:
            layer.attention.uses_rope = self.positions.uses_rope(index)
            layer.attention.window = window_of(layer.attention.windows, index)
        return layer

    def _read(self, hidden: Tensor, targets: Tensor | None, counted: Tensor | None) -> Tensor:
        """Return the logits or the loss of hidden states."""
        if self.parametrization is not None:
            # Not the logits: they are more numbers, and the loss computes them in blocks.
            hidden = hidden * self.parametrization.output_multiplier
        if self.head is not None:
            return cast("Tensor", self.head(hidden, targets, counted))
        assert self.embedding is not None, "a tied last stage needs the embedding's rows"
        return cast("Tensor", self.readout(hidden, self.embedding.weight, targets, counted))

    def _scope(
        self,
        hidden: Tensor,
        encoding: PositionEncoding,
        documents: Tensor | None,
        mask: CausalMask | None,
    ) -> AttentionContext:
        """Create the layers' shared context; one layer per window prepares its masks."""
        length = len(encoding.position_ids) * self.sequence_parts
        scope = AttentionContext(
            encoding=encoding, documents=documents, mask=mask, length=length
        )
        parts = [layer.attention for layer in collect_layers(self).values() if layer.attention]
        for window, attention in {part.window: part for part in parts}.items():
            attention.prepare_masks(hidden, scope.for_window(window))
        return scope

    def build_mask(
        self,
        inputs: Int[Tensor, "batch seq"] | Float[Tensor, "batch seq dim"],
        documents: Int[Tensor, "batch whole"] | None,
    ) -> CausalMask:
        """Return the mask of a microbatch, for all stages of a rank."""
        return CausalMask(position_ids=self._position_ids(inputs), documents=documents)

    def _position_ids(self, inputs: Tensor) -> Int[Tensor, " seq"]:
        # Hidden states may be one of several equal slices of the tokens; token ids never are.
        slices = self.sequence_slices if inputs.is_floating_point() else 1
        return self.position_ids(inputs.shape[1] * slices, inputs.device)

    def compute_loss(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        *,
        documents: Int[Tensor, "batch whole"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the mean cross-entropy of ``targets`` over all rows, in nats per token."""
        # Through `self(...)`, not `self.forward(...)`: the hooks of `fully_shard` must run.
        return cast("Tensor", self(tokens, documents=documents, targets=targets))

    def _embed(self, tokens: Tensor, encoding: PositionEncoding) -> Tensor:
        assert self.embedding is not None, "tokens were given to a stage without an embedding"
        hidden: Tensor = self.embedding(tokens)
        if self.embedding_scale is not None:
            hidden = hidden.to(product_dtype(hidden))
            hidden = hidden * torch.tensor(self.embedding_scale, dtype=hidden.dtype)
        if encoding.embedded is not None:
            hidden = hidden + encoding.embedded
        if self.parametrization is not None:
            hidden = hidden * self.parametrization.embedding_multiplier
        hidden = hidden.to(product_dtype(hidden))
        if self.embedding_norm is not None:
            hidden = self.embedding_norm(hidden)
        return cast("Tensor", self.dropout(hidden))
