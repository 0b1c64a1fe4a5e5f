"""Write the points of a ladder out: each size at each length, with rate and warm-up by rule."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from command.study.schema import PARAMETERS, LadderRule, Value
from components.config.schema.recipe import read_section
from components.errors import RecipeError

RATIO, TOTAL, BATCH = (
    "tokens_per_parameter",
    "budget.total_tokens",
    "budget.global_batch_tokens",
)
RATE = "optimizer.lr"


def spread_ladder(tree: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Add ``points`` to a ladder's file; lengths are whole steps, the shortest first.

    Raises:
        RecipeError: the rule lacks something, or its sizes do not rise.
    """
    place = f"{where}.ladder"
    if not isinstance(tree["ladder"], dict):
        raise RecipeError(place, f"{tree['ladder']!r} is no mapping", "see studies/ladder.yaml")
    rule = read_section(LadderRule, tree["ladder"], place)
    counts = [size.get(PARAMETERS) for size in rule.sizes]
    whole = [one for one in counts if type(one) is int and one > 0]
    if len(whole) < len(counts) or any(one >= other for one, other in pairwise(whole)):
        remedy = f"write {PARAMETERS}: N in each, smallest first"
        problem = f"{counts} are no rising numbers of parameters"
        raise RecipeError(f"{place}.sizes", problem, remedy)
    fixed = tree.get("set")
    step = fixed.get(BATCH) if isinstance(fixed, dict) else None
    if type(step) is not int or step < 1:
        remedy = f"write set: {{{BATCH}: 512}}"
        raise RecipeError(
            f"{where}.set", f"a ladder's lengths are whole steps of {BATCH}", remedy
        )
    points = [
        _point(rule, size, count, ratio, step)
        for size, count in zip(rule.sizes, whole, strict=True)
        for ratio in rule.tokens_per_parameter
    ]
    return {**tree, "points": points}


def _point(
    rule: LadderRule, size: Mapping[str, Value], count: int, ratio: int, step: int
) -> dict[str, Value]:
    steps = max(1, round(ratio * count / step))
    warmup = max(1, round(rule.warmup.fraction * steps)) * step
    return {
        **size,
        RATIO: ratio,
        TOTAL: steps * step,
        RATE: float(f"{rule.lr.at(count):.3g}"),
        rule.warmup.key: warmup,
    }
