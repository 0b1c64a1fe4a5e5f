"""The tree below a run: in which order its nodes come, and which checkpoints they need."""

from bisect import bisect
from collections.abc import Mapping
from itertools import pairwise

from components.config.recipe import Recipe
from components.config.schema.children import KINDS, Child
from components.config.start import end_of, step_end
from components.config.suggestions import nearest
from components.errors import RecipeError

CHILDREN = "children"
_OF_CLUSTER = frozenset({"nodes", "ranks", "hours", "jobs", "smoke"})  # as in a study
_NOT_SET = frozenset({CHILDREN, "from", "cluster", "scale", "name", "why", "home", "works"})


def ordered(children: Mapping[str, Child]) -> list[str]:
    """List the nodes so that each comes after the one that it is of.

    Raises:
        RecipeError: a node is none of the kinds, or of a node that is not there, that has no
            checkpoints, or that comes from it.
    """
    for name, child in children.items():
        _check_form(name, child, children)
    found: list[str] = []
    while len(found) < len(children):
        due = [
            name
            for name, one in children.items()
            if name not in found and (one.of is None or one.of in found)
        ]
        if not due:
            left = next(name for name in children if name not in found)
            problem = f"{left} comes from {children[left].of}, which comes from {left}"
            remedy = "begin with the run itself: leave out of:"
            raise RecipeError(f"{CHILDREN}.{left}.of", problem, remedy)
        found += due
    return found


def _check_form(name: str, child: Child, children: Mapping[str, Child]) -> None:
    place = f"{CHILDREN}.{name}"
    if len(child.kinds) != 1:
        problem = f"it is {' and '.join(child.kinds) or 'nothing to do'}"
        raise RecipeError(place, problem, f"keep one of {', '.join(KINDS)}")
    if child.of is not None and child.of not in children:
        problem = f"there is no node {child.of}"
        raise RecipeError(f"{place}.of", problem, nearest(child.of, list(children)))
    if child.of is not None and children[child.of].kind in {"evaluate", "export"}:
        problem = f"{child.of} has no checkpoints"
        raise RecipeError(f"{place}.of", problem, "name a run or a merge")
    merged = child.of is not None and children[child.of].kind == "merge"
    if merged and (child.merge is not None or child.takes == "optimizer"):
        problem = f"{child.of} is one average, which has no optimizer's state"
        remedy = "from a merge come runs with: weights, evaluations and exports"
        raise RecipeError(f"{place}.of", problem, remedy)
    own = None if child.of is None else children[child.of].at_tokens
    if merged and (child.every_tokens or child.at_tokens not in {None, own}):
        problem = f"{child.of} has one checkpoint"
        raise RecipeError(place, problem, "leave at_tokens and every_tokens out")
    if child.set and child.takes is None:
        problem = "only a run has keys of its own"
        raise RecipeError(f"{place}.set", problem, "write with: optimizer, or leave it out")
    for key in child.set:
        section, _, rest = key.partition(".")
        of_cluster = section == "cluster" and rest in _OF_CLUSTER
        if (section in _NOT_SET and not of_cluster) or "_target_" in key.split("."):
            problem = f"{key} is no key that a child may set"
            remedy = "a key of a recipe, a group, or cluster.nodes, ranks, hours, jobs, smoke"
            raise RecipeError(f"{place}.set", problem, remedy)
    if child.every_tokens is not None and (
        child.kind != "evaluate" or child.at_tokens is not None
    ):
        problem = "only an evaluation is repeated, and at_tokens says that it is once"
        raise RecipeError(f"{place}.every_tokens", problem, "keep one of the two")


def settled_tokens(name: str, child: Child, parent: Recipe) -> int | None:
    """Return after which of the parent's checkpoints the node comes; None: after several.

    Raises:
        RecipeError: the parent ends before, or writes no checkpoint there.
    """
    place, every = f"{CHILDREN}.{name}", parent.checkpoint.every_tokens
    if child.every_tokens is not None:
        if child.every_tokens % every:
            problem = f"{child.every_tokens:_}, and the parent saves every {every:_} tokens"
            raise RecipeError(f"{place}.every_tokens", problem, f"a multiple of {every:_}")
        return None
    try:
        tokens = (
            end_of(parent) if child.at_tokens is None else step_end(parent, child.at_tokens)
        )
    except RecipeError as error:
        raise RecipeError(f"{place}.at_tokens", error.problem, error.remedy) from None
    saved = saved_tokens(parent)
    if tokens not in saved:
        at = bisect(saved, tokens)
        near = " or ".join(f"{one:_}" for one in saved[max(0, at - 1) : at + 1])
        problem = f"{tokens:_}, and the parent saves every {every:_} tokens, not there"
        raise RecipeError(f"{place}.at_tokens", problem, f"write {near}")
    if child.merge is not None and saved.index(tokens) + 1 < child.merge.last:
        problem = f"{child.merge.last} checkpoints, but {saved.index(tokens) + 1} are written"
        raise RecipeError(f"{place}.merge.last", problem, "take fewer, or save more often")
    return tokens


def saved_tokens(recipe: Recipe) -> list[int]:
    """List the tokens of all checkpoints of a whole run: each cadence, each phase's end."""
    clock, every, end = recipe.clock, recipe.checkpoint.every_tokens, end_of(recipe)
    began = clock.tokens_after(recipe.first_step)
    due = (
        clock.tokens_after(clock.steps_of(tokens)) for tokens in range(every, end + 1, every)
    )
    ends = (clock.tokens_after(span.end_step) for span in clock.spans)
    return sorted({tokens for tokens in (*due, *ends) if tokens > began})


def below(children: Mapping[str, Child], name: str) -> dict[str, Child]:
    """Take the part of a tree that comes from one node, which becomes its root."""
    found: dict[str, Child] = {}
    for one in ordered(children):
        if children[one].of == name:
            found[one] = children[one].model_copy(update={"of": None})
        elif children[one].of in found:
            found[one] = children[one]
    return found


def needed_tokens(recipe: Recipe) -> frozenset[int]:
    """Say which checkpoints of a run stay for its own children, whatever its retention says."""
    saved, found = saved_tokens(recipe) if recipe.children else [], set[int]()
    for child in recipe.children.values():
        if child.of is not None:
            continue
        if (every := child.every_tokens) is not None:
            found |= {new for old, new in pairwise([0, *saved]) if new // every > old // every}
        elif child.at_tokens is not None:
            end = saved.index(child.at_tokens) + 1
            found |= {*saved[end - (child.merge.last if child.merge else 1) : end]}
    return frozenset(found)
