"""Start of a run from its parent's checkpoint: start token and compatibility checks."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from components.config.key_groups import PLACES, KeyGroup, split_by_group
from components.config.limits import check_at_least, check_at_most
from components.config.recipe import Recipe
from components.config.schema.types import to_plain
from components.config.user_overrides import MutableTree
from components.errors import RecipeError

START = "from"
# Keys that may differ from the parent's if a run starts with the optimizer's state.
_OWN = ("budget.total_tokens", "schedule.", "optimizer.", "phases.", "data.phases.", "from.")
_SOURCES = "data.sources."
_WEIGHTS_ALONE = "set from.with=weights to start from the weights only"


def check_beginning(recipe: Recipe) -> None:
    """Raise a RecipeError for a run that would end at or before its start."""
    start, total = recipe.start, recipe.budget.total_tokens
    if start is not None and start.goes_on and start.at_tokens is not None:
        name = "from.at_tokens + 1 ="  # tokens count from the parent's first
        check_at_least("budget.total_tokens", total, name, start.at_tokens + 1)


def end_of(parent: Recipe) -> int:
    """Return the tokens of a whole run, including the overshoot of its last step."""
    return parent.token_clock.tokens_after(parent.token_clock.num_steps)


def step_end(parent: Recipe, tokens: int, path: str = "from.at_tokens") -> int:
    """Return the tokens after the first step of the parent that reaches ``tokens``."""
    check_at_most(path, tokens, f"the end of {parent.name},", end_of(parent))
    return parent.token_clock.tokens_after(parent.token_clock.steps_of(tokens))


def shrink_tokens(tokens: int, parent: Recipe, full_tokens: int) -> int:
    """Scale a token count of the parent to its miniature, rounded to a checkpoint."""
    every = parent.checkpoint.every_tokens
    return max(1, round(tokens * parent.budget.total_tokens / full_tokens / every)) * every


def shrink_start(
    tree: MutableTree, parent: Recipe, full_tokens: int, values: MutableTree
) -> None:
    """Shrink a miniature's start token to its parent's budget, unless ``values`` sets it.

    ``full_tokens`` is the budget of the full-size parent.
    """
    total, tokens = parent.budget.total_tokens, tree[START].get("at_tokens")
    if total < full_tokens and tokens is not None and "from.at_tokens" not in values:
        tree[START]["at_tokens"] = min(shrink_tokens(tokens, parent, full_tokens), total)
    shrink_budget(tree, parent, full_tokens, values)


def shrink_budget(
    tree: MutableTree, parent: Recipe, full_tokens: int, values: MutableTree
) -> None:
    """Shrink the budget of a run that shares its parent's clock (``with: optimizer``)."""
    total, start, budget = parent.budget.total_tokens, tree[START], tree["budget"]
    continues = start.get("with") == "optimizer" and "budget.total_tokens" not in values
    if continues and total < full_tokens:
        least = (start.get("at_tokens") or total) + parent.budget.global_batch_tokens
        budget["total_tokens"] = max(budget["total_tokens"] * total // full_tokens, least)
        values["budget.total_tokens"] = budget["total_tokens"]


def check_start(recipe: Recipe, parent: Recipe) -> None:
    """Raise a RecipeError if a run cannot start from a checkpoint of ``parent``."""
    start = recipe.start
    assert start is not None, "only a run with a parent is checked"
    here, there = _weights(recipe), _weights(parent)
    for key, value in here.items():
        if value != there[key]:
            problem = f"the weights differ: {key} is {there[key]} in the parent, {value} here"
            raise RecipeError(START, problem, "use the parent's model=")
    if to_plain(recipe.tokenizer) != to_plain(parent.tokenizer):
        problem = "the tokenizer differs from the parent's"
        raise RecipeError("tokenizer", problem, f"use the tokenizer of {parent.name}")
    if not start.goes_on:
        return
    for key, old, new in _differing(recipe, parent):
        problem = f"from.with=optimizer requires the parent's {old!r}, got {new!r}"
        raise RecipeError(key, problem, f"keep {old!r}, or {_WEIGHTS_ALONE}")
    if start.at_tokens is None:
        return
    new, old = (_before(run, start.at_tokens) for run in (recipe, parent))
    for place in ("phases", "data.phases"):
        if new[place] != old[place]:
            problem = f"before {start.at_tokens:,} tokens, the phases differ from the parent's"
            raise RecipeError(place, problem, "keep the parent's; start new phases later")


def _weights(recipe: Recipe) -> dict[str, Any]:
    """Return the values that determine the shapes of the weights."""
    shape = recipe.decoder_spec
    keys = ["dim", "num_layers", "padded_vocab_size", "attention.num_heads"]
    keys += ["attention.num_kv_heads", "attention.head_dim", "mlp.ffn_dim", "mlp.num_experts"]
    values: dict[str, Any] = {key: attrgetter(key)(shape) for key in keys}
    return values | {"parameters": recipe.derived_numbers.parameters.total}


def _differing(recipe: Recipe, parent: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """Yield differing keys that must not change; sources may be added for later phases."""
    trees = (parent.model_dump(mode="json"), recipe.model_dump(mode="json"))
    old, new = (split_by_group(tree)[KeyGroup.MATHEMATICS] for tree in trees)
    # Dtypes must not change, although some of them are layout keys.
    for tree, keys in zip(trees, (old, new), strict=True):
        keys |= {f"precision.{key}": dtype for key, dtype in tree["precision"].items()}
    for key in dict.fromkeys([*old, *new]):
        there, here = old.get(key), new.get(key)
        own = key.startswith(_OWN) and key != "optimizer._target_"
        own = own or not PLACES.isdisjoint(key.split("."))  # the content is compared later
        moved = key.startswith(_SOURCES) and (key not in old or key not in new)
        if there != here and not own and not moved:
            yield key, there, here


def _before(recipe: Recipe, tokens: int) -> dict[str, Any]:
    """Return the phases and data phases of a run before ``tokens``."""
    clock = recipe.token_clock
    samples = clock.consumed_after(clock.steps_of(tokens))
    spans = [span for span in clock.spans if span.first_token < tokens]
    return {
        "phases": [
            [plateau for plateau in clock.plateaus if plateau.first_token < tokens],
            [recipe.phases.get(span.name) for span in spans[1:]],
        ],
        "data.phases": [
            (first, to_plain(shares))
            for first, _, shares in recipe.data_phases
            if first < samples
        ],
    }
