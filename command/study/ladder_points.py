"""Points of a ladder: each size with lengths by tokens per parameter, or by FLOPs."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from command.study.schema import FLOPS, PARAMETERS, RATIO, BudgetRule, LadderRule, Value
from components.config.validation import read_section
from components.errors import RecipeError
from components.scaling.isoflop import LEAST_SIZES
from components.scaling.law import FLOPS_PER_PARAMETER

TOTAL, BATCH, RATE = "budget.total_tokens", "budget.global_batch_tokens", "optimizer.lr"
Mistakes = Iterator[tuple[str, str, str]]  # path, problem and fix


def spread_ladder(tree: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Add ``points`` to a ladder's file. Lengths are whole steps."""
    place = f"{where}.ladder"
    if not isinstance(tree["ladder"], dict):
        raise RecipeError(
            place, f"{tree['ladder']!r} is not a mapping", "see studies/ladder.yaml"
        )
    rule = read_section(LadderRule, tree["ladder"], place)
    for path, problem, remedy in _mistakes(rule):
        raise RecipeError(f"{place}.{path}", problem, remedy)
    fixed = tree.get("set")
    step = fixed.get(BATCH) if isinstance(fixed, dict) else None
    if type(step) is not int or step < 1:
        remedy = f"write set: {{{BATCH}: 512}}"
        raise RecipeError(f"{where}.set", f"a ladder requires {BATCH}", remedy)
    points = [
        _point(rule, size, tokens, label, step)
        for size in rule.sizes
        for tokens, label in _lengths(rule, int(size[PARAMETERS]))
    ]
    return {**tree, "points": points}


def _mistakes(rule: LadderRule) -> Mistakes:
    counts = [size.get(PARAMETERS) for size in rule.sizes]
    whole = [count for count in counts if type(count) is int and count > 0]
    if len(whole) < len(counts) or not _rises(whole):
        problem = f"{counts} are not increasing numbers of parameters"
        yield "sizes", problem, f"write {PARAMETERS}: N in each, smallest first"
        return
    if (rule.flops is None) == (rule.tokens_per_parameter is None):
        yield RATIO, "conflicts with flops", "remove one of the two"
        return
    if rule.flops is None:
        return
    if not _rises(rule.flops.budgets):
        yield "flops.budgets", f"{list(rule.flops.budgets)} do not increase", "smallest first"
    for budget in rule.flops.budgets:
        sizes = [count for count in whole if _takes(rule.flops, count, budget)]
        if len(sizes) < LEAST_SIZES:
            problem = f"only {len(sizes)} sizes have a length with {budget:g} FLOPs"
            remedy = f"reach {LEAST_SIZES}: add sizes, or widen {RATIO}"
            yield "flops.budgets", problem, remedy


def _rises(numbers: list[int] | tuple[float, ...]) -> bool:
    return all(first < second for first, second in itertools.pairwise(numbers))


def _takes(rule: BudgetRule, parameters: int, budget: float) -> bool:
    low, high = rule.tokens_per_parameter
    return low <= budget / FLOPS_PER_PARAMETER / parameters**2 <= high


def _lengths(rule: LadderRule, count: int) -> Iterator[tuple[float, dict[str, Value]]]:
    """Yield the tokens of each run of a size, and the rule that determines them."""
    for ratio in rule.tokens_per_parameter or ():
        yield ratio * count, {RATIO: ratio}
    for budget in rule.flops.budgets if rule.flops else ():
        if rule.flops and _takes(rule.flops, count, budget):
            yield budget / FLOPS_PER_PARAMETER / count, {FLOPS: budget}


def _point(
    rule: LadderRule,
    size: Mapping[str, Value],
    tokens: float,
    label: Mapping[str, Value],
    step: int,
) -> dict[str, Value]:
    steps = max(1, round(tokens / step))
    warmup = max(1, round(rule.warmup.fraction * steps)) * step
    return {
        **size,
        **label,
        TOTAL: steps * step,
        RATE: float(f"{rule.lr.rate_at(int(size[PARAMETERS])):.3g}"),
        rule.warmup.key: warmup,
    }
