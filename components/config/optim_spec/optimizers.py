"""Specifications of optimizers: Adam, AdamW, AdEMAMix and Muon."""

from typing import ClassVar, Literal

from components.config.schema.part import PartSpec
from components.ranges import BelowOne, Count, NonNegative, Positive, Tokens

Decayed = Literal["matrices", "all", "all_but_embedding"]


class OptimizerSpec(PartSpec):
    """Settings of all optimizers."""

    is_partial: ClassVar[bool] = True

    lr: Positive
    beta1: BelowOne
    beta2: BelowOne
    eps: Positive
    weight_decay: NonNegative
    decay: Decayed
    clip_norm: Positive
    clip_after_tokens: Tokens


class AdamSpec(OptimizerSpec):
    """Adam with L2 regularization."""

    target: ClassVar[str] = "components.optim.adam.Adam"


class AdamWSpec(OptimizerSpec):
    """Adam with decoupled weight decay, before or after the update."""

    target: ClassVar[str] = "components.optim.adamw.AdamW"

    decay_order: Literal["before", "after"]


class AdEMAMixSpec(OptimizerSpec):
    """AdamW with a second, slow mean of gradients."""

    target: ClassVar[str] = "components.optim.ademamix.AdEMAMix"

    beta3: BelowOne
    alpha: NonNegative
    alpha_warmup_tokens: Tokens
    beta3_warmup_tokens: Tokens
    decay: Literal["matrices", "all"]


class MuonSpec(OptimizerSpec):
    """Muon for matrices of layers, AdamW for the rest."""

    target: ClassVar[str] = "components.optim.muon.Muon"

    matrix_lr_factor: Positive
    embedding_lr_factor: Positive
    head_lr_factor: Positive
    momentum: BelowOne
    nesterov: bool
    newton_schulz_steps: Count
    update_scale: Literal["match_rms_adamw", "original"]
    decay_order: Literal["before", "after"]
    momentum_start: BelowOne | None = None
    momentum_warmup_tokens: Tokens = 0
