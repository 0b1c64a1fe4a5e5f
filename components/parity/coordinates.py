"""Coordinate check: how activations and their changes scale with the width and the depth.

The recipe's model is built in several widths (multiples of heads and feed-forward widths) and
depths, and trained in float32 on one process for a few steps, with the recipe's optimizer on
random tokens. The check measures, before and after, the mean size of the outputs of attention,
MLP and layers and of the logits, and of their changes (https://arxiv.org/abs/2203.03466,
appendix D.1, and microsoft/mup's ``coord_check.py``).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from components.build import build_node
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.engine.optimizer import build_optimizer
from components.engine.parallelize import draw_weights
from components.model.decoder import Decoder
from components.optim.groups import set_rate

KINDS = ("attention", "mlp", "residual", "logits")
WIDTHS = (1, 2, 4, 8, 16)  # multiples of the recipe's width
DEPTHS = (2, 4, 8, 16)
WIDTH_LAYERS = 2
SEEDS = 4
STEPS = 4
# A flat line has an exponent of smaller magnitude; a missing scaling rule gives 0.5 or more.
# Gated MLPs and experts show up to 0.12: the part of the initial weights in their changes
# vanishes slowly with the width.
MOST_SLOPE = 0.15
_SEQUENCES = 8
_GROWING = ("dim", "attention.num_heads", "attention.num_kv_heads", "mlp.ffn_dim")
_GROWING_IF_THERE = ("mlp.shared_ffn_dim", "dense_mlp.ffn_dim")

SizeByKind = dict[str, float]  # by kind


@dataclass(frozen=True)
class Coordinates:
    """Mean activation sizes of a kind at each width or depth, and their slope."""

    kind: str
    of: str  # "start" or "change" (since the start)
    axis: Literal["width", "depth"]
    sizes: Mapping[int, float]

    @property
    def growth_exponent(self) -> float:
        """Exponent of the size: least squares over logarithms.

        NaN if a size is 0 or not finite, but 0 if weights start at zero and so do all sizes.
        """
        sizes = list(self.sizes.values())
        if not all(0.0 < size < math.inf for size in sizes):
            return math.nan if any(sizes) or self.of == "change" else 0.0
        slope, _ = np.polyfit(np.log(list(self.sizes)), np.log(sizes), 1)
        return float(slope)

    @property
    def growth_ratio(self) -> float:
        """Ratio of the fitted sizes at the largest and the smallest width or depth."""
        return math.pow(max(self.sizes) / min(self.sizes), self.growth_exponent)

    @property
    def is_flat(self) -> bool:
        return abs(self.growth_exponent) <= MOST_SLOPE  # False for NaN


def check_widths(recipe: Recipe, *, rate: float) -> list[Coordinates]:
    """Measure the recipe's model, with `WIDTH_LAYERS` layers, at each width."""
    sized = {}
    for factor in WIDTHS:
        resized_recipe = resize_recipe(recipe, factor=factor, num_layers=WIDTH_LAYERS)
        sized[resized_recipe.decoder_spec.dim] = resized_recipe
    return _coordinates("width", sized, rate)


def check_depths(recipe: Recipe, *, rate: float) -> list[Coordinates]:
    """Measure the recipe's model, in its own width, at each depth."""
    sized = {depth: resize_recipe(recipe, factor=1, num_layers=depth) for depth in DEPTHS}
    return _coordinates("depth", sized, rate)


def resize_recipe(recipe: Recipe, *, factor: int, num_layers: int) -> Recipe:
    """Return the recipe with ``factor`` times the width (more heads) and ``num_layers``."""
    tree = recipe.model_dump(mode="json")
    model = tree["model"]
    for path in (*_GROWING, *_GROWING_IF_THERE):
        *owners, key = path.split(".")
        part: Any = model
        for owner in owners:
            part = part.get(owner) or {}
        if part.get(key) is not None:
            part[key] *= factor
    model["num_layers"] = num_layers
    return check_recipe(tree)


def _coordinates(
    axis: Literal["width", "depth"], sized: Mapping[int, Recipe], rate: float
) -> list[Coordinates]:
    changes = {
        size: [_measure(resized_recipe, seed, rate) for seed in range(SEEDS)]
        for size, resized_recipe in sized.items()
    }
    return [
        Coordinates(
            kind,
            of,
            axis,
            {
                size: math.prod(run[place][kind] for run in runs) ** (1 / SEEDS)
                for size, runs in changes.items()
            },
        )
        for place, of in ((0, "start"), (1, "change"))
        for kind in KINDS
    ]


def _measure(recipe: Recipe, seed: int, rate: float) -> tuple[SizeByKind, SizeByKind]:
    """Return the sizes before the steps, and the sizes of the changes over the steps."""
    decoder = cast("Decoder", build_node(recipe.model, "model"))
    draw_weights(decoder, seed=recipe.budget.seed + seed)
    optimizer = build_optimizer(recipe, decoder, list(decoder.named_parameters()))
    batches = _drawn(recipe, seed)
    probe = next(batches)[:, :-1]
    before = _look(decoder, probe)
    decoder.train()
    for _ in range(STEPS):
        rows = next(batches)
        optimizer.zero_grad()
        decoder.compute_loss(rows[:, :-1], rows[:, 1:]).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        set_rate(optimizer, rate)
        optimizer.step()
    after = _look(decoder, probe)
    changes = {
        kind: [new - old for new, old in zip(after[kind], before[kind], strict=True)]
        for kind in KINDS
    }
    return _sizes(before), _sizes(changes)


def _sizes(seen: Mapping[str, Sequence[Tensor]]) -> SizeByKind:
    return {
        kind: sum(output.abs().mean().item() for output in seen[kind]) / len(seen[kind])
        for kind in KINDS
    }


@torch.no_grad()
def _look(decoder: Decoder, tokens: Tensor) -> dict[str, list[Tensor]]:
    """Return the outputs of each kind of module for these tokens; of layers, only the last."""
    seen: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    layers: list[Any] = list(decoder.layers.values())
    watched: list[tuple[str, nn.Module]] = [("residual", layers[-1])]
    for layer in layers:
        watched += [("attention", part) for part in layer.mixing_parts]
        watched += [("mlp", layer.mlp)] if layer.mlp is not None else []
    decoder.eval()
    with _watching(seen, watched):
        seen["logits"].append(decoder(tokens))
    return seen


@contextmanager
def _watching(
    seen: Mapping[str, list[Tensor]], watched: Sequence[tuple[str, nn.Module]]
) -> Iterator[None]:
    hooks = [
        module.register_forward_hook(
            lambda _, __, output, kind=kind: seen[kind].append(output.detach())
        )
        for kind, module in watched
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _drawn(recipe: Recipe, seed: int) -> Iterator[Tensor]:
    """Draw microbatches: small ids are common and large ones rare, as in text."""
    generator = np.random.default_rng(seed)
    shape = _SEQUENCES, recipe.budget.sequence_length + 1
    while True:
        ids = generator.random(shape) ** 3 * recipe.tokenizer["vocab_size"]
        yield torch.from_numpy(ids.astype(np.int64))
