"""Tree of children of a run: the order of its nodes, and the checkpoints that they need."""

from bisect import bisect
from collections.abc import Mapping
from itertools import pairwise

from components.config.limits import check_at_most, check_multiple
from components.config.recipe import Recipe
from components.config.schema.children import KINDS, Child
from components.config.start import end_of, step_end
from components.config.suggestions import suggest_similar
from components.errors import RecipeError

CHILDREN = "children"
_OF_CLUSTER = frozenset({"nodes", "ranks", "hours", "jobs", "smoke"})  # as in a study
_NOT_SET = frozenset(
    {CHILDREN, "from", "cluster", "scale"}
    | {"name", "description", "reference_cluster", "citations"}
)


def sort_by_parent(children: Mapping[str, Child]) -> list[str]:
    """Return the node names, each after its parent."""
    for name, child in children.items():
        _check_form(name, child, children)
    return sorted(children, key=lambda name: _depth(name, children))


def _depth(name: str, children: Mapping[str, Child]) -> int:
    depth, above = 0, children[name].of
    while above is not None:
        depth, above = depth + 1, children[above].of
        if depth > len(children):
            problem = f"{name} is its own ancestor through {children[name].of}"
            raise RecipeError(f"{CHILDREN}.{name}.of", problem, "remove this key")
    return depth


def _check_form(name: str, child: Child, children: Mapping[str, Child]) -> None:
    place, parent = f"{CHILDREN}.{name}", children.get(child.of or "")
    if len(child.node_kinds) != 1:
        problem = f"expected one kind, got {' and '.join(child.node_kinds) or 'none'}"
        raise RecipeError(place, problem, f"set exactly one of {', '.join(KINDS)}")
    if child.of is not None and parent is None:
        problem = f"unknown node {child.of}"
        raise RecipeError(f"{place}.of", problem, suggest_similar(child.of, list(children)))
    for key in child.set:
        section, _, rest = key.partition(".")
        of_cluster = section == "cluster" and rest in _OF_CLUSTER
        if (section in _NOT_SET and not of_cluster) or "_target_" in key.split("."):
            fix = "use a recipe key, a group, or cluster.nodes, ranks, hours, jobs or smoke"
            raise RecipeError(f"{place}.set", f"a child cannot set {key}", fix)
    kinds = [] if parent is None else parent.node_kinds
    other_tokens = parent is not None and child.at_tokens not in {None, parent.at_tokens}
    for key, is_broken, problem in (
        ("of", kinds in (["evaluate"], ["export"]), f"{child.of} has no checkpoints"),
        (
            "of",
            kinds == ["merge"] and (child.merge is not None or child.takes == "optimizer"),
            "a merge has no optimizer state and cannot be merged again",
        ),
        (
            "at_tokens",
            kinds == ["merge"] and (child.every_tokens is not None or other_tokens),
            "a merge has only one checkpoint",
        ),
        ("set", bool(child.set) and child.takes is None, "only a run (with) accepts set"),
        (
            "every_tokens",
            child.every_tokens is not None
            and (child.evaluate is None or child.at_tokens is not None),
            "only an evaluation without at_tokens accepts every_tokens",
        ),
    ):
        if is_broken:
            raise RecipeError(f"{place}.{key}", problem, f"remove {key}, or change {place}.of")


def resolve_parent_tokens(name: str, child: Child, parent: Recipe) -> int | None:
    """Return the tokens of the parent's checkpoint that the node uses; None if several."""
    place, every = f"{CHILDREN}.{name}", parent.checkpoint.every_tokens
    if child.every_tokens is not None:
        rule = "the parent's checkpoint.every_tokens"
        check_multiple(f"{place}.every_tokens", child.every_tokens, rule, every)
        return None
    tokens = end_of(parent)
    if child.at_tokens is not None:
        tokens = step_end(parent, child.at_tokens, f"{place}.at_tokens")
    saved = saved_tokens(parent)
    if tokens not in saved:
        at = bisect(saved, tokens)
        near = " or ".join(f"{saved_at:_}" for saved_at in saved[max(0, at - 1) : at + 1])
        problem = f"no checkpoint at {tokens:_} tokens; the parent saves every {every:_} tokens"
        raise RecipeError(f"{place}.at_tokens", problem, f"set at_tokens to {near}")
    if child.merge is not None:
        written = saved.index(tokens) + 1
        check_at_most(f"{place}.merge.last", child.merge.last, "saved checkpoints,", written)
    return tokens


def saved_tokens(recipe: Recipe) -> list[int]:
    """Return the tokens of all checkpoints of a run: at each interval and phase end."""
    clock, every, end = recipe.token_clock, recipe.checkpoint.every_tokens, end_of(recipe)
    began = clock.tokens_after(recipe.first_step)
    due = (
        clock.tokens_after(clock.steps_of(tokens)) for tokens in range(every, end + 1, every)
    )
    ends = (clock.tokens_after(span.end_step) for span in clock.spans)
    return sorted({tokens for tokens in (*due, *ends) if tokens > began})


def select_subtree(children: Mapping[str, Child], name: str) -> dict[str, Child]:
    """Return the subtree below the node ``name``; its direct children get no parent."""
    subtree: dict[str, Child] = {}
    for node in sort_by_parent(children):
        child = children[node]
        if child.of == name or child.of in subtree:
            of = None if child.of == name else child.of
            subtree[node] = child.model_copy(update={"of": of})
    return subtree


def needed_tokens(recipe: Recipe) -> frozenset[int]:
    """Return the tokens of checkpoints that children need, so that retention keeps them."""
    saved, needed = saved_tokens(recipe) if recipe.children else [], set[int]()
    for child in recipe.children.values():
        if child.of is not None:
            continue
        if (every := child.every_tokens) is not None:
            needed |= {new for old, new in pairwise([0, *saved]) if new // every > old // every}
        elif child.at_tokens is not None:
            end = saved.index(child.at_tokens) + 1
            needed |= {*saved[end - (child.merge.last if child.merge else 1) : end]}
    return frozenset(needed)
