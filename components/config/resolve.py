"""From the composed tree to the settled one, and from one settled layout to another.

Checkpoints hold whole tensors under the names of the whole model, and what a step reads is a
function of the step alone. So a run can go on under any degrees, on any number of ranks and
under either engine; every key outside the mathematics may change.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from components.config import layout
from components.config.check import change_recipe, check_recipe, read_fields
from components.config.key_groups import KeyGroup, declared, degrees_that_compute, split
from components.config.phases import recipe_of, recipes_of
from components.config.recipe import Recipe
from components.config.rules.check import check_phases
from components.config.scale_down import largest_microbatch, scale_down
from components.config.scale_phases import deal_phases, shrink_phases
from components.config.schema.sections import Cluster, Parallelism
from components.config.schema.types import thaw
from components.config.suggestions import nearest
from components.config.user_overrides import (
    REMOVABLE,
    Tree,
    UserOverrides,
    differences,
    is_open,
    leaves,
)
from components.config.validation import read_section
from components.errors import RecipeError

MISSING = "???"
CHOICES = {"device"}  # where ``auto`` is a choice, not a number to derive
NONE = {"spare_nodes", "restarts"}  # where ``auto`` is none until the nodes are known


def resolve(
    tree: Tree, named_keys: Iterable[str], full: Tree, *, reads_files: bool = True
) -> Recipe:
    """Apply the scale's rule to what the user did not name, derive the layout, check it all.

    Fields are validated once, with a placeholder for each ``auto``; of what is derived after
    that, only the sections that change. ``full`` is the composed tree without the user's keys.
    Unless it ``reads_files``, the files that the recipe names are not opened.

    Raises:
        RecipeError: whatever is wrong, with its YAML path.
    """
    named = UserOverrides(named_keys)
    before = deepcopy(_with_placeholders(tree))
    template = _read_template(before)
    _drop_unshared(tree, named)
    layout.settle_smoke(tree, named)
    shrink = template.scale.shrink
    if not isinstance(shrink, str):
        scale_down(tree, shrink, named, full, reads_files=reads_files)
        shrink_phases(tree, named, full)
        sequences = largest_microbatch(tree, shrink, full)
        layout.deal_ranks(tree, sequences, named)
        deal_phases(tree, sequences, named)
    layout.settle_layout(tree, named)
    changed = {key: value for key, value in tree.items() if value != before.get(key)}
    return change_recipe(template, changed)


def resolve_template(tree: Tree, named_keys: Iterable[str]) -> Recipe:
    """Check keys and types, or raise a RecipeError; ``auto`` is 1 until a search lays out."""
    _drop_unshared(tree, UserOverrides(named_keys))
    return _read_template(_with_placeholders(tree))


def leaves_recompute_open(tree: Tree) -> bool:
    """Return whether the planner has to choose what is recomputed."""
    section = tree["parallelism"]
    return isinstance(section, Mapping) and section.get("recompute") == "auto"


def _read_template(tree: Tree) -> Recipe:
    """Validate every field, so that the rules for derived values can count on types."""
    for path, value in leaves(tree):
        if MISSING in (value if isinstance(value, list) else [value]):
            raise RecipeError(path, "the recipe does not set it", f"set {path}=...")
    template = read_fields(tree)
    check_phases(tree["schedule"])
    return template


def _drop_unshared(tree: Tree, named: UserOverrides) -> None:
    """A data set is a menu: what no share asks for leaves, unless the user named it."""
    data = tree["data"]
    if data["mixture"] != "given":
        return
    sections = [data, *data["phases"].values()]
    asked = {name for section in sections for name in section["shares"]}
    data["sources"] = {
        name: source
        for name, source in data["sources"].items()
        if name in asked or named.covers(f"data.sources.{name}")
    }


def _with_placeholders(tree: Tree) -> Tree:
    """Copy a tree, with 1 or 0 for each ``auto`` that is a number to derive."""
    tree = dict(tree)
    for name in ("parallelism", "cluster", "watchdog"):
        section = tree[name]
        if isinstance(section, Mapping):  # else it is refused where types are checked
            tree[name] = {
                key: int(key not in NONE) if value == "auto" and key not in CHOICES else value
                for key, value in section.items()
            }
    return tree


# Inputs that follow the mathematics: they may be named again, but not changed.
_PLACES = ("data.tokenizer_folder", "model.init_from", "data.sources.")
# Groups of conf/ that may be chosen anew, and sections whose keys may all be set.
OBJECTS = ("trainer", "callbacks", "logger")  # not written where they are as in any run
GROUPS = ("checkpoint", "evaluation", "guard", "profiler", "tracking", "watchdog", *OBJECTS)
SECTIONS = ("parallelism", "cluster", *GROUPS)
_COMPOSED = ("scale", "children")  # composing a recipe reads these; a settled one is past that
# May be `auto`.
_DERIVED = ("data", "data_shard", "ranks", "nodes", "devices_per_node", "spare_nodes")
_RECOMPUTE = "parallelism.recompute"
_NEW_RUN = "start a new run with run=FOLDER"
# What a run that begins with another's optimizer may change.
_BRANCHED = ("budget.total_tokens", "schedule", "phases", "data.phases", "optimizer.")


def relayout(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Put ``values`` into a settled recipe and derive again what follows from them.

    The degrees stay that are not named, the data degree too unless the ranks are named, and
    the ranks follow. So do the sequences of a microbatch: what a batch is cut into is never
    changed silently.

    Raises:
        RecipeError: a key that is unknown or belongs to the mathematics, or a layout that the
            rules refuse.
    """
    check_movable(values)
    if values.get(_RECOMPUTE) == "auto":
        problem = "auto was answered when the run began; it goes on with the answer"
        raise RecipeError(_RECOMPUTE, problem, f"leave it out, or name one: {_RECOMPUTE}=full")
    tree = {name: thaw(getattr(recipe, name)) for name in OBJECTS}
    tree |= recipe.model_dump(mode="json")
    for key, value in values.items():
        before = _put(tree, key, value)
        trained = key.startswith(_PLACES) and declared(key) is KeyGroup.MATHEMATICS
        if trained and value != before:
            problem = f"{value!r}, but what is trained follows from it; here it is {before!r}"
            raise RecipeError(key, problem, f"leave it as it is, or {_NEW_RUN}")
    # Types first: whoever settles the layout counts on them.
    for name, kind in (("parallelism", Parallelism), ("cluster", Cluster)):
        section = {
            key: 1 if value == "auto" and key in _DERIVED else value
            for key, value in tree[name].items()
        }
        read_section(kind, section, name)
    named = UserOverrides(key for key, value in values.items() if value != "auto")
    _forget_derived(recipe, tree, named)
    layout.settle_layout(tree, named)
    moved = check_recipe(tree)
    for name, after in recipes_of(moved).items():
        check_mathematics(recipe_of(recipe, name), after)
    check_continues(recipe, moved, "this run")
    return moved


def check_movable(keys: Iterable[str]) -> None:
    """Raise a RecipeError for the first key that may not stand beside ``resume``."""
    for key in keys:
        if not is_movable(key) and not key.startswith(_PLACES):
            takes = f"a resumed run takes its recipe from its folder, {key} too"
            movable = ", ".join(f"{name}.*" for name in SECTIONS)
            problem = f"{takes}; beside resume may stand keys of {movable}"
            others = "docs/moving.md lists all that may change"
            remedy = f"drop {key}, or {_NEW_RUN}; {others}"
            if key.startswith(_BRANCHED):
                remedy += "; with from.run=FOLDER from.with=optimizer it starts from this run"
            raise RecipeError("resume", problem, remedy)


def is_movable(key: str) -> bool:
    """Return whether a run may continue with another value of ``key``.

    A misspelled key of a movable section counts as movable: `_put` names the right spelling.
    """
    section, dot, _ = key.partition(".")
    if section in _COMPOSED or not dot:
        return key in GROUPS or (not dot and declared(key) is KeyGroup.RECORD)
    return section in SECTIONS or declared(key) not in {None, KeyGroup.MATHEMATICS}


def check_continues(before: Recipe, after: Recipe, run: object) -> None:
    """Refuse to continue ``run`` with other mathematics.

    Raises:
        RecipeError: the first keys that differ.
    """
    trees = (split(one.model_dump(mode="json")) for one in (before, after))
    changed = differences(*(tree[KeyGroup.MATHEMATICS] for tree in trees))
    if changed:
        pairs = list(changed.items())[:3]
        listed = [f"{key}: {old!r:.60} there, {new!r:.60} here" for key, (old, new) in pairs]
        problem = f"{run} holds another recipe: {'; '.join(listed)}"
        raise RecipeError("run", problem, "keep these values, or name another run=FOLDER")


def _put(tree: Tree, key: str, value: Any) -> Any:
    """Put a value in the place of another, and return that; open mappings take new keys."""
    *parents, name = key.split(".")
    here: Any = tree
    for depth, parent in enumerate(parents):
        if isinstance(here, dict) and is_open(".".join(parents[: depth + 1])):
            here.setdefault(parent, {})
        if not isinstance(here.get(parent), dict):
            raise RecipeError(key, "unknown key", nearest(parent, list(here)))
        here = here[parent]
    is_removed = value is None and key.startswith(REMOVABLE)
    if name not in here and (is_removed or not is_open(key)):
        raise RecipeError(key, "unknown key", nearest(name, list(here)))
    before, here[name] = here.get(name), value
    return before


def _forget_derived(recipe: Recipe, tree: Tree, named: UserOverrides) -> None:
    """Set back to ``auto`` what followed from other keys; a cluster's node is what it is."""
    degrees = recipe.parallelism
    derived = ["cluster.ranks", "cluster.nodes"]
    if recipe.cluster.scheduler == "none":
        derived.append("cluster.devices_per_node")
    before = recipe.cluster.model_dump(mode="json")
    if recipe.cluster.spare_nodes == layout.reserve_of(before):
        derived.append("cluster.spare_nodes")
    if recipe.watchdog.restarts == recipe.cluster.spare_nodes:
        derived.append("watchdog.restarts")
    if degrees.data_shard == degrees.data * degrees.expert:
        derived.append("parallelism.data_shard")
    for path in derived:
        named.put(tree, path, "auto")


def check_mathematics(before: Recipe, after: Recipe) -> None:
    """Raise a RecipeError for keys of a layout that change what this model computes."""
    old, new = before.parallelism, after.parallelism
    reasons = degrees_that_compute(before.shape.mlp.num_experts, old.expert_divisor)
    for key, reason in reasons.items():
        kept, wanted = getattr(old, key), getattr(new, key)
        if wanted != kept:
            problem = f"{wanted}, but {reason}, here {kept}"
            remedy = f"keep parallelism.{key}={kept}, or {_NEW_RUN}"
            raise RecipeError(f"parallelism.{key}", problem, remedy)
