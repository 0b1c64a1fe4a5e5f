"""A coordinate check: how activations and their changes scale with the width and the depth.

The recipe's model is made in several widths (as many times the heads and the feed-forward
widths) and depths, in float32 on one process, and takes a few steps of the recipe's optimizer
on drawn tokens. Before and after them the same tokens are looked at: the mean size of what
attention, MLP and layers give and of the logits, and of how far each of them has moved. After
https://arxiv.org/abs/2203.03466, appendix D.1, and microsoft/mup's ``coord_check.py``.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from components.build import build
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.engine.optimizer import build_optimizer
from components.engine.parallelize import draw_weights
from components.model.decoder import Decoder
from components.optim.groups import set_rate

KINDS = ("attention", "mlp", "residual", "logits")
WIDTHS = (1, 2, 4, 8, 16)  # times the recipe's own
DEPTHS = (2, 4, 8, 16)
WIDTH_LAYERS = 2
SEEDS = 4
STEPS = 4
# What is flat has a lesser exponent, of either sign; a rule that is missing gives 0.5 or more.
# Gated MLPs and experts show up to 0.12: the part of drawn weights in their changes vanishes
# with the width, and slowly.
MOST_SLOPE = 0.15
_SEQUENCES = 8
_GROWING = ("dim", "attention.num_heads", "attention.num_kv_heads", "mlp.ffn_dim")
_GROWING_IF_THERE = ("mlp.shared_ffn_dim", "dense_mlp.ffn_dim")

Sizes = dict[str, float]  # by kind


@dataclass(frozen=True)
class Coordinates:
    """Mean sizes of activations of a kind at each width or depth, and their slope."""

    kind: str
    of: str  # the start, or the change since
    axis: Literal["width", "depth"]
    sizes: Mapping[int, float]

    @property
    def slope(self) -> float:
        """The exponent with which the size grows: least squares over logarithms.

        It is NaN if nothing changed, or if a size is not finite. Weights that start at zero
        have size 0 at each width, which is flat.
        """
        sizes = list(self.sizes.values())
        if not all(0.0 < size < math.inf for size in sizes):
            return math.nan if any(sizes) or self.of == "change" else 0.0
        slope, _ = np.polyfit(np.log(list(self.sizes)), np.log(sizes), 1)
        return float(slope)

    @property
    def growth(self) -> float:
        """How many times as large the line is at the largest as at the smallest."""
        return math.pow(max(self.sizes) / min(self.sizes), self.slope)

    @property
    def is_flat(self) -> bool:
        return abs(self.slope) <= MOST_SLOPE  # never for NaN


def check_widths(recipe: Recipe, *, rate: float) -> list[Coordinates]:
    """Measure the recipe's model, of few layers, at each of the widths."""
    sized = {}
    for factor in WIDTHS:
        one = resized(recipe, factor=factor, num_layers=WIDTH_LAYERS)
        sized[one.shape.dim] = one
    return _coordinates("width", sized, rate)


def check_depths(recipe: Recipe, *, rate: float) -> list[Coordinates]:
    """Measure the recipe's model, as wide as it is, at each of the depths."""
    sized = {depth: resized(recipe, factor=1, num_layers=depth) for depth in DEPTHS}
    return _coordinates("depth", sized, rate)


def resized(recipe: Recipe, *, factor: int, num_layers: int) -> Recipe:
    """Make the model so many times as wide, by heads, and so deep."""
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
    found = {
        size: [_measure(one, seed, rate) for seed in range(SEEDS)]
        for size, one in sized.items()
    }
    return [
        Coordinates(
            kind,
            of,
            axis,
            {
                size: math.prod(run[place][kind] for run in runs) ** (1 / SEEDS)
                for size, runs in found.items()
            },
        )
        for place, of in ((0, "start"), (1, "change"))
        for kind in KINDS
    ]


def _measure(recipe: Recipe, seed: int, rate: float) -> tuple[Sizes, Sizes]:
    """Return the sizes before the steps, and those of the changes over them."""
    decoder = cast("Decoder", build(recipe.model, "model"))
    draw_weights(decoder, seed=recipe.budget.seed + seed)
    optimizer = build_optimizer(recipe, decoder, list(decoder.named_parameters()))
    batches = _drawn(recipe, seed)
    probe = next(batches)[:, :-1]
    before = _look(decoder, probe)
    decoder.train()
    for _ in range(STEPS):
        rows = next(batches)
        optimizer.zero_grad()
        decoder.loss(rows[:, :-1], rows[:, 1:]).backward()  # type: ignore[no-untyped-call]  # torch's
        set_rate(optimizer, rate)
        optimizer.step()
    after = _look(decoder, probe)
    moved = {
        kind: [new - old for new, old in zip(after[kind], before[kind], strict=True)]
        for kind in KINDS
    }
    return _sizes(before), _sizes(moved)


def _sizes(seen: Mapping[str, Sequence[Tensor]]) -> Sizes:
    return {
        kind: sum(one.abs().mean().item() for one in seen[kind]) / len(seen[kind])
        for kind in KINDS
    }


@torch.no_grad()
def _look(decoder: Decoder, tokens: Tensor) -> dict[str, list[Tensor]]:
    """Return what each kind of module gives for these tokens; of layers the last."""
    seen: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    layers: list[Any] = list(decoder.layers.values())
    watched: list[tuple[str, nn.Module]] = [("residual", layers[-1])]
    for layer in layers:
        watched += [("attention", layer.attention), ("mlp", layer.mlp)]
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
            lambda _, __, given, kind=kind: seen[kind].append(given.detach())
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
