"""Key groups of a recipe (mathematics, layout, machine, record), declared by the schema."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from components.config.part_nodes import NAMED, OF_PHASE, find_spec
from components.config.recipe import Recipe
from components.config.schema.types import KeyGroup as KeyGroup
from components.config.schema.types import OtherGroup, fields_of, sections_at
from components.config.user_overrides import iterate_leaves

TITLES = {
    KeyGroup.MATHEMATICS: "changes the mathematics",
    KeyGroup.LAYOUT: "changes the layout",
    KeyGroup.MACHINE: "affects only the machine",
    KeyGroup.RECORD: "affects only descriptions and measurements",
}
# Keys of ``cluster`` that follow from the name of the machine.
_PROFILE = ("hardware", "site", "storage", "failures", "electricity", "accounting", "queues")
# Input paths. Their content matters, not the path; content hashes are compared if known.
PLACES = frozenset({"files", "embedded", "tokens", "dataset", "tokenizer_folder"})


@lru_cache(maxsize=4096)
def find_declared_group(path: str) -> KeyGroup | None:
    """Return the key group that the schema declares for ``path``, None if it declares none."""
    steps = path.split(".")
    group = None
    for depth, step in enumerate(steps):
        below = "".join(f"{key}." for key in steps[depth + 1 :])
        for section in sections_at(Recipe, steps[:depth]):
            field = fields_of(section).get(step)
            group = section.keys_group or group
            for mark in field.metadata if field else ():
                if isinstance(mark, KeyGroup):
                    group = mark
                elif isinstance(mark, OtherGroup) and any(
                    fnmatchcase(below, f"{key}*") for key in mark.keys
                ):
                    group = mark.group
            if field is None and section.keys_group:
                group = None
    inner = [*sections_at(Recipe, steps), *sections_at(Recipe, [*steps, "*"])]
    return None if any(section.keys_group for section in inner) else group


def degrees_that_compute(num_experts: int | None, divisor: object) -> dict[str, str]:
    """Return the ``parallelism`` keys that change the experts' results, with the reasons."""
    reasons = {
        "expert_grad_average": "it scales the experts' gradients",
        "microbatch_sequences": "routers are balanced over each microbatch",
        "expert": "with expert_grad_average=replicas, the number of expert ranks scales the "
        "experts' gradients",
    }
    if divisor != "replicas":
        del reasons["expert"]
    return reasons if num_experts else {}


def without_profile(keys: Iterable[str]) -> list[str]:
    """Return the keys without those that follow from ``cluster.name``, if it is in the keys."""
    listed = list(keys)
    follows = tuple(f"cluster.{key}" for key in _PROFILE) if "cluster.name" in listed else ()
    return [key for key in listed if not key.startswith(follows)]


def computing_keys(tree: Mapping[str, Any]) -> frozenset[str]:
    """Return the ``parallelism`` keys that change the results of this recipe."""
    experts = tree["model"].get("mlp", {}).get("num_experts")
    degrees = degrees_that_compute(experts, tree["parallelism"].get("expert_grad_average"))
    return frozenset(f"parallelism.{key}" for key in degrees)


def split_by_group(tree: Mapping[str, Any]) -> dict[KeyGroup, dict[str, Any]]:
    """Split a resolved recipe's tree by key group into mappings from dotted path to value.

    An additional entry has the order of a schedule's phases, which mappings ignore if compared.
    """
    leaves_by_group: dict[KeyGroup, dict[str, Any]] = {group: {} for group in KeyGroup}
    computing = computing_keys(tree)
    for path, value in iterate_leaves(tree):
        key = OF_PHASE.sub("", path)
        section, _, rest = path.partition(".")
        if section in NAMED:
            target = tree[section][rest.partition(".")[0]]["_target_"]
            group = find_spec(target, f"{section}._target_").keys_group
        else:
            group = KeyGroup.MATHEMATICS if key in computing else find_declared_group(path)
        assert group is not None, f"{path} has no key group"
        leaves_by_group[group][path] = value
    phases = tree["schedule"].get("phases")
    if isinstance(phases, Mapping):
        leaves_by_group[KeyGroup.MATHEMATICS]["schedule.phases (order)"] = list(phases)
    return leaves_by_group
