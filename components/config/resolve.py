"""Resolve a composed recipe, and change the layout of a resolved recipe.

Checkpoints hold whole tensors under the names of the whole model, and the data of a step
depends only on the step. So a run can continue with any degrees, ranks and engine; every key
outside the mathematics may change.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from components.config import layout
from components.config.check import change_recipe, check_recipe, read_fields
from components.config.key_groups import (
    KeyGroup,
    degrees_that_compute,
    find_declared_group,
    split_by_group,
)
from components.config.phases import recipe_of, recipes_of
from components.config.recipe import Recipe
from components.config.scale_down import largest_microbatch, scale_down
from components.config.scale_phases import deal_phases, shrink_phases
from components.config.schema.sections import Cluster, Parallelism
from components.config.schema.types import to_plain
from components.config.suggestions import suggest_similar
from components.config.user_overrides import (
    REMOVABLE,
    MutableTree,
    UserOverrides,
    compare_values,
    is_open,
    iterate_leaves,
)
from components.config.validation import read_section
from components.errors import RecipeError

MISSING = "???"


def resolve_tree(tree: MutableTree, named_keys: Iterable[str], full: MutableTree) -> Recipe:
    """Resolve a recipe: shrink keys that the user did not name, derive the layout, check it.

    All fields are validated once, with a placeholder for each ``auto``, and changed sections
    again after derivation. ``full`` is the composed tree without the user's keys. A RecipeError
    has the YAML path.
    """
    named = UserOverrides(named_keys)
    before = deepcopy(_with_placeholders(tree))
    template = _read_template(before)
    _drop_unshared(tree, named)
    layout.resolve_smoke_nodes(tree, named)
    shrink = template.scale.shrink
    if not isinstance(shrink, str):
        scale_down(tree, shrink, named, full)
        shrink_phases(tree, named, full)
        sequences = largest_microbatch(tree, shrink, full)
        layout.deal_ranks(tree, sequences, named)
        deal_phases(tree, sequences, named)
    layout.resolve_layout(tree, named)
    changed = {key: value for key, value in tree.items() if value != before.get(key)}
    return change_recipe(template, changed)


def resolve_template(tree: MutableTree, named_keys: Iterable[str]) -> Recipe:
    """Check keys and types of a recipe; ``auto`` is a placeholder for a later search."""
    _drop_unshared(tree, UserOverrides(named_keys))
    return _read_template(_with_placeholders(tree))


def leaves_recompute_open(tree: MutableTree) -> bool:
    """Return whether ``recompute`` is ``auto``, so that the planner chooses it."""
    section = tree["parallelism"]
    return isinstance(section, Mapping) and section.get("recompute") == "auto"


def _read_template(tree: MutableTree) -> Recipe:
    """Validate every field: the rules for derived values rely on correct types."""
    for path, value in iterate_leaves(tree):
        if MISSING in (value if isinstance(value, list) else [value]):
            raise RecipeError(path, "the recipe does not set this key", f"set {path}=...")
    return read_fields(tree)


def _drop_unshared(tree: MutableTree, named: UserOverrides) -> None:
    """Remove data sources without a share, unless the user named them."""
    data = tree["data"]
    if data["mixture"] != "given":
        return
    sections = [data, *data["phases"].values()]
    shared = {name for section in sections for name in section["shares"]}
    data["sources"] = {
        name: source
        for name, source in data["sources"].items()
        if name in shared or named.is_overridden(f"data.sources.{name}")
    }


def _with_placeholders(tree: MutableTree) -> MutableTree:
    derived = ("parallelism", "cluster", "watchdog")
    return dict(tree) | {name: layout.with_placeholders(tree[name]) for name in derived}


# Inputs of the mathematics: a user may repeat their value, but not change it.
_PLACES = ("data.tokenizer_folder", "model.init_from", "data.sources.")
# Groups of conf/ that a resumed run may choose again, and sections with only movable keys.
OBJECTS = ("trainer", "callbacks", "logger")  # omitted from a recipe if they are the default
GROUPS = ("checkpoint", "evaluation", "guard", "profiler", "tracking", "watchdog", *OBJECTS)
SECTIONS = ("parallelism", "cluster", *GROUPS)
_COMPOSED = ("scale", "children")  # only read when a recipe is composed
_RECOMPUTE = "parallelism.recompute"
_NEW_RUN = "start a new run with run=FOLDER"
# Keys that a run may change if it starts with the optimizer of another run.
_BRANCHED = ("budget.total_tokens", "schedule", "phases", "data.phases", "optimizer.")


def update_recipe(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Set ``values`` in a resolved recipe and derive dependent values again.

    Degrees and the microbatch size stay unless given, and the number of ranks follows from the
    degrees. If the number of ranks is given, the data degree follows from it. Keys of the
    mathematics are refused.
    """
    check_movable(values)
    if values.get(_RECOMPUTE) == "auto":
        problem = "auto was resolved when the run started and cannot be resolved again"
        raise RecipeError(_RECOMPUTE, problem, f"remove this key, or set {_RECOMPUTE}=full")
    tree = {name: to_plain(getattr(recipe, name)) for name in OBJECTS}
    tree |= recipe.model_dump(mode="json")
    for key, value in values.items():
        before = _put(tree, key, value)
        trained = key.startswith(_PLACES) and find_declared_group(key) is KeyGroup.MATHEMATICS
        if trained and value != before:
            problem = f"{value!r} differs from {before!r}, the value of the run"
            raise RecipeError(key, problem, f"keep {before!r}, or {_NEW_RUN}")
    # Check types first: deriving the layout needs numbers.
    for name, kind in (("parallelism", Parallelism), ("cluster", Cluster)):
        read_section(kind, layout.with_placeholders(tree[name]), name)
    named = UserOverrides(key for key, value in values.items() if value != "auto")
    _forget_derived(recipe, tree, named)
    layout.resolve_layout(tree, named)
    moved = check_recipe(tree)
    for name, after in recipes_of(moved).items():
        check_mathematics(recipe_of(recipe, name), after)
    check_continues(recipe, moved, "this run")
    return moved


def check_movable(keys: Iterable[str]) -> None:
    """Raise a RecipeError for the first key that a resumed run cannot change."""
    for key in keys:
        if not is_movable(key) and not key.startswith(_PLACES):
            movable = ", ".join(f"{name}.*" for name in SECTIONS)
            problem = f"a resumed run cannot change {key}; it can change {movable}"
            fix = f"remove {key}, or {_NEW_RUN}; docs/moving.md lists the keys that can change"
            if key.startswith(_BRANCHED):
                fix += "; to start it from this run, add from.run=FOLDER from.with=optimizer"
            raise RecipeError("resume", problem, fix)


def is_movable(key: str) -> bool:
    """Return whether a run may continue with another value of ``key``.

    A misspelled key of a movable section counts as movable: `_put` suggests the spelling.
    """
    section, dot, _ = key.partition(".")
    if section in _COMPOSED or not dot:
        return key in GROUPS or (not dot and find_declared_group(key) is KeyGroup.RECORD)
    return section in SECTIONS or find_declared_group(key) not in {None, KeyGroup.MATHEMATICS}


def check_continues(before: Recipe, after: Recipe, run: object) -> None:
    """Check that both recipes have the same mathematics, so that ``run`` can continue."""
    trees = (split_by_group(recipe.model_dump(mode="json")) for recipe in (before, after))
    changed = compare_values(*(tree[KeyGroup.MATHEMATICS] for tree in trees))
    if changed:
        pairs = list(changed.items())[:3]
        listed = [f"{key} is {old!r:.60} there, {new!r:.60} here" for key, (old, new) in pairs]
        problem = f"{run} has a different recipe: {'; '.join(listed)}"
        raise RecipeError("run", problem, "keep these values, or use another run=FOLDER")


def _put(tree: MutableTree, key: str, value: Any) -> Any:
    """Set the value of a key and return the old one; open mappings accept new keys."""
    *parents, name = key.split(".")
    here: Any = tree
    for depth, parent in enumerate(parents):
        if isinstance(here, dict) and is_open(".".join(parents[: depth + 1])):
            here.setdefault(parent, {})
        if not isinstance(here.get(parent), dict):
            raise RecipeError(key, "unknown key", suggest_similar(parent, list(here)))
        here = here[parent]
    is_removed = value is None and key.startswith(REMOVABLE)
    if name not in here and (is_removed or not is_open(key)):
        raise RecipeError(key, "unknown key", suggest_similar(name, list(here)))
    before, here[name] = here.get(name), value
    return before


def _forget_derived(recipe: Recipe, tree: MutableTree, named: UserOverrides) -> None:
    """Reset derived values to ``auto``, except a real cluster's devices per node."""
    cluster, degrees = recipe.cluster, recipe.parallelism
    reserve = layout.reserve_of(cluster.model_dump(mode="json"))
    for path, was_derived in {
        "cluster.ranks": True,
        "cluster.nodes": True,
        "cluster.devices_per_node": cluster.scheduler == "none",
        "cluster.spare_nodes": cluster.spare_nodes == reserve,
        "watchdog.restarts": recipe.watchdog.restarts == cluster.spare_nodes,
        "parallelism.data_shard": degrees.data_shard == degrees.num_replicas,
    }.items():
        if was_derived:
            named.set_default(tree, path, "auto")


def check_mathematics(before: Recipe, after: Recipe) -> None:
    """Raise a RecipeError for changed layout keys that affect the computed numbers."""
    old, new = before.parallelism, after.parallelism
    reasons = degrees_that_compute(before.decoder_spec.mlp.num_experts, old.expert_grad_average)
    for key, reason in reasons.items():
        current, wanted = getattr(old, key), getattr(new, key)
        if wanted != current:
            problem = f"cannot change from {current} to {wanted}: {reason}"
            remedy = f"keep parallelism.{key}={current}, or {_NEW_RUN}"
            raise RecipeError(f"parallelism.{key}", problem, remedy)
