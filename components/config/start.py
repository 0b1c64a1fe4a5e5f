"""Where a run begins on its parent's clock, and whether the two go together."""

from collections.abc import Iterator
from typing import Any

from components.config.key_groups import PLACES, KeyGroup, split
from components.config.recipe import Recipe
from components.config.schema.start import Start
from components.config.schema.types import thaw
from components.config.user_overrides import Tree
from components.errors import RecipeError

START = "from"
# With the optimizer's state these may differ: all else was decided before the branch.
_OWN = ("budget.total_tokens", "schedule.", "optimizer.", "phases.", "data.phases.", "from.")
_SOURCES = "data.sources."
_WEIGHTS_ALONE = "from.with=weights begins anew with the weights alone"


def check_beginning(recipe: Recipe) -> None:
    """Raise a RecipeError for a run that would end before it begins."""
    parent, total = recipe.start, recipe.budget.total_tokens
    if parent is None or not parent.goes_on or parent.at_tokens is None:
        return
    if total <= parent.at_tokens:
        problem = f"{total:,} are seen already after the {parent.at_tokens:,} of its parent"
        remedy = (
            f"all tokens are counted from the parent's first on: give more; {_WEIGHTS_ALONE}"
        )
        raise RecipeError("budget.total_tokens", problem, remedy)


def end_of(parent: Recipe) -> int:
    """Count the tokens of a whole run, the overshoot of its last step too."""
    return parent.clock.tokens_after(parent.clock.steps)


def step_end(parent: Recipe, tokens: int) -> int:
    """Return the tokens after the first step of the parent that reaches ``tokens``.

    Raises:
        RecipeError: the parent never sees so many.
    """
    if tokens > (end := end_of(parent)):
        problem = f"{tokens:_}, but {parent.name} ends after {end:_} tokens"
        raise RecipeError("from.at_tokens", problem, f"write at most {end:_}")
    return parent.clock.tokens_after(parent.clock.steps_of(tokens))


def shrink_tokens(tokens: int, parent: Recipe, full_tokens: int) -> int:
    """Scale a point of the parent's budget to its miniature, at a checkpoint of that one."""
    every = parent.checkpoint.every_tokens
    return max(1, round(tokens * parent.budget.total_tokens / full_tokens / every)) * every


def shrink_start(tree: Tree, parent: Recipe, full_tokens: int, values: Tree) -> None:
    """Give a miniature its start in its parent's; what ``values`` has stays as it is.

    ``full_tokens`` are the parent's at full size.
    """
    total, tokens = parent.budget.total_tokens, tree[START].get("at_tokens")
    if total < full_tokens and tokens is not None and "from.at_tokens" not in values:
        tree[START]["at_tokens"] = min(shrink_tokens(tokens, parent, full_tokens), total)
    shrink_budget(tree, parent, full_tokens, values)


def shrink_budget(tree: Tree, parent: Recipe, full_tokens: int, values: Tree) -> None:
    """Shrink the budget of a run with its parent's optimizer as its parent is: one clock."""
    total, start, budget = parent.budget.total_tokens, tree[START], tree["budget"]
    continues = start.get("with") == "optimizer" and "budget.total_tokens" not in values
    if continues and total < full_tokens:
        least = (start.get("at_tokens") or total) + parent.budget.global_batch_tokens
        budget["total_tokens"] = max(budget["total_tokens"] * total // full_tokens, least)
        values["budget.total_tokens"] = budget["total_tokens"]


def check_start(recipe: Recipe, parent: Recipe) -> None:
    """Raise a RecipeError where a run cannot begin with a checkpoint of ``parent``."""
    begins = recipe.start
    assert begins is not None, "only who has a parent asks"
    if (here := _weights(recipe)) != (there := _weights(parent)):
        key = next(key for key in here if here[key] != there[key])
        problem = f"its model has other weights: {key} is {there[key]} there, {here[key]} here"
        raise RecipeError(START, problem, "take the parent's model=, and change its positions")
    if thaw(recipe.tokenizer) != thaw(parent.tokenizer):
        problem = "the parent was trained with another tokenizer"
        raise RecipeError("tokenizer", problem, f"take that of {parent.name}")
    if begins.goes_on:
        _check_goes_on(recipe, parent, begins)


def _weights(recipe: Recipe) -> dict[str, Any]:
    """Say what decides the form of the weights."""
    shape = recipe.shape
    parts = {"attention": ("num_heads", "num_kv_heads", "head_dim"), "mlp": ("ffn_dim",)}
    found = {key: getattr(shape, key) for key in ("dim", "num_layers", "padded_vocab_size")}
    found |= {
        f"{one}.{key}": getattr(getattr(shape, one), key)
        for one, keys in parts.items()
        for key in keys
    }
    found["mlp.num_experts"] = shape.mlp.num_experts
    return found | {"parameters": recipe.derived.parameters.total}


def _check_goes_on(recipe: Recipe, parent: Recipe, begins: Start) -> None:
    """What the parent's steps were made of stays; what comes after is the child's own."""
    for key, there, here in _differing(recipe, parent):
        state = key.startswith(("precision.", "optimizer."))
        what = (
            "the optimizer's state would not fit" if state else "its steps were made with that"
        )
        problem = f"{here!r}, but its parent has {there!r}, and {what}"
        raise RecipeError(key, problem, f"leave it as it was; {_WEIGHTS_ALONE}")
    if begins.at_tokens is None:
        return
    here, there = _before(recipe, begins.at_tokens), _before(parent, begins.at_tokens)
    for place in ("phases", "data.phases"):
        if here[place] != there[place]:
            problem = f"before {begins.at_tokens:,} tokens they are not those of the parent"
            raise RecipeError(place, problem, "keep the parent's, and begin others later")


def _differing(recipe: Recipe, parent: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """Yield keys of the past that differ; sources may be added, for phases to come."""
    trees = (parent.model_dump(mode="json"), recipe.model_dump(mode="json"))
    old, new = (split(tree)[KeyGroup.MATHEMATICS] for tree in trees)
    for tree, found in zip(trees, (old, new), strict=True):  # of the layout, but of one dtype
        found |= {f"precision.{key}": one for key, one in tree["precision"].items()}
    for key in dict.fromkeys([*old, *new]):
        there, here = old.get(key), new.get(key)
        own = key.startswith(_OWN) and key != "optimizer._target_"
        own = own or not PLACES.isdisjoint(key.split("."))  # what is there is compared later
        added = key.startswith(_SOURCES) and key not in old
        left = key.startswith(_SOURCES) and key not in new
        if there != here and not own and not added and not left:
            yield key, there, here


def _before(recipe: Recipe, tokens: int) -> dict[str, Any]:
    """Say by which steps, of which shares, a run comes to ``tokens``."""
    clock = recipe.clock
    samples = clock.consumed_after(clock.steps_of(tokens))
    spans = [span for span in clock.spans if span.first_token < tokens]
    return {
        "phases": [
            [one for one in clock.plateaus if one.first_token < tokens],
            [recipe.phases.get(span.name) for span in spans[1:]],
        ],
        "data.phases": [
            (first, thaw(shares)) for first, _, shares in recipe.data_phases if first < samples
        ],
    }
