"""Which keys decide mathematics, layout, machine and record of a run: the schema says it."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from components.config.part_nodes import NAMED, OF_PHASE, find_spec
from components.config.recipe import Recipe
from components.config.schema.types import KeyGroup as KeyGroup
from components.config.schema.types import OtherGroup, fields_of, sections_at
from components.config.user_overrides import leaves

TITLES = {
    KeyGroup.MATHEMATICS: "changes the mathematics",
    KeyGroup.LAYOUT: "changes the layout",
    KeyGroup.MACHINE: "only the machine",
    KeyGroup.RECORD: "only what is said or measured",
}
# Of another machine these follow from its name.
_PROFILE = ("hardware", "site", "storage", "failures", "electricity", "accounting", "queues")
# Where inputs lie; what is in them decides. Whoever has their hashes compares these instead.
PLACES = frozenset({"files", "embedded", "tokens", "dataset", "tokenizer_folder"})


@lru_cache(maxsize=4096)
def declared(path: str) -> KeyGroup | None:
    """Return the group that the schema declares for ``path``; None if it says nothing of it."""
    steps = path.split(".")
    group = None
    for depth, step in enumerate(steps):
        below = "".join(f"{key}." for key in steps[depth + 1 :])
        for section in sections_at(Recipe, steps[:depth]):
            field = fields_of(section).get(step)
            group = section.keys_group or group
            for one in field.metadata if field else ():
                if isinstance(one, KeyGroup):
                    group = one
                elif isinstance(one, OtherGroup) and below.startswith(one.keys):
                    group = one.group
            if field is None and section.keys_group:
                group = None
    inner = [*sections_at(Recipe, steps), *sections_at(Recipe, [*steps, "*"])]
    return None if any(section.keys_group for section in inner) else group


def degrees_that_compute(num_experts: int | None, divisor: object) -> dict[str, str]:
    """Return the keys of ``parallelism`` that change what experts compute, and why."""
    reasons = {
        "expert_divisor": "the size of the experts' gradients follows from it",
        "microbatch_sequences": "routers are balanced over each microbatch",
        "expert": "with expert_divisor=copies the experts' gradients are as many times larger "
        "as there are expert ranks",
    }
    if divisor != "copies":
        del reasons["expert"]
    return reasons if num_experts else {}


def without_profile(keys: Iterable[str]) -> list[str]:
    """Leave out what follows from ``cluster.name``, where that is among the keys."""
    listed = list(keys)
    follows = tuple(f"cluster.{key}" for key in _PROFILE) if "cluster.name" in listed else ()
    return [key for key in listed if not key.startswith(follows)]


def computing_keys(tree: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys of ``parallelism`` that change what this recipe computes."""
    experts = tree["model"].get("mlp", {}).get("num_experts")
    degrees = degrees_that_compute(experts, tree["parallelism"].get("expert_divisor"))
    return frozenset(f"parallelism.{key}" for key in degrees)


def _group_of_class(nodes: Mapping[str, Any], section: str, name: str) -> KeyGroup | None:
    """Return what the class of a callback or a logger says of its keys."""
    return find_spec(nodes[name]["_target_"], f"{section}.{name}._target_").keys_group


def split(tree: Mapping[str, Any]) -> dict[KeyGroup, dict[str, Any]]:
    """Split the leaves of a settled recipe's tree by group, each under its dotted path.

    The phases of a schedule follow one another in the order of their names in the tree: that
    order is a leaf of its own.
    """
    found: dict[KeyGroup, dict[str, Any]] = {group: {} for group in KeyGroup}
    computing = computing_keys(tree)
    for path, value in leaves(tree):
        key = OF_PHASE.sub("", path)
        section, _, rest = path.partition(".")
        if section in NAMED:
            group = _group_of_class(tree[section], section, rest.partition(".")[0])
        else:
            group = KeyGroup.MATHEMATICS if key in computing else declared(path)
        assert group is not None, f"{path} has no group"
        found[group][path] = value
    phases = tree["schedule"].get("phases")
    if isinstance(phases, Mapping):
        found[KeyGroup.MATHEMATICS]["schedule.phases (order)"] = list(phases)
    return found
