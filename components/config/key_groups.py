"""What each key of a recipe decides: the mathematics, the layout, the machine, or the record.

*Mathematics*: which numbers are computed, up to the rounding of their sums. *Layout*: in what
parts, in which order, by which kernels. *Machine*: where. *Record*: what is said and measured
of the run; no weight depends on it. This table is the only place that tells them apart: the
fingerprint, moving a run, locks and comparisons all ask it.
"""

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Any

from components.config.schema.data import MANNER
from components.config.user_overrides import leaves


class KeyGroup(StrEnum):
    """The four groups, the weightiest first."""

    MATHEMATICS = "mathematics"
    LAYOUT = "layout"
    MACHINE = "machine"
    RECORD = "record"


TITLES = {
    KeyGroup.MATHEMATICS: "changes the mathematics",
    KeyGroup.LAYOUT: "changes the layout",
    KeyGroup.MACHINE: "only the machine",
    KeyGroup.RECORD: "only what is said or measured",
}
# Of another machine these follow from its name.
_CLUSTER = "cluster.name"
_PROFILE = tuple(
    f"cluster.{key}"
    for key in ("hardware", "site", "storage", "failures", "accounting", "queues")
)
# What a key says of itself and of all below it; `*` is any one step, the longest match wins. A
# section without an entry of its own must list its keys: a new one has to be placed here.
_TABLE: Mapping[KeyGroup, tuple[str, ...]] = {
    KeyGroup.MATHEMATICS: (
        *("model", "tokenizer", "optimizer", "schedule", "precision", "budget"),
        *("data.shares", "data.mixture", "data.surplus", "data.phases", "data.preparation"),
        *("data.tokenizer_folder", "data.held_out_fraction", "data.tokenizer_sample_bytes"),
        *("data.document_mask", "data.sources.*.files", "data.sources.*.embedded"),
        *("data.sources.*.tokens", "data.sources.*.eod", "data.sources.*.dataset"),
        *("data.sources.*.column", "data.sources.*.most_epochs", "data.skip"),
    ),
    KeyGroup.LAYOUT: (
        # Kernels for the same products; the last bits differ.
        *("model.attention.backend", "model.mlp.path"),
        *("parallelism.data", "parallelism.data_shard", "parallelism.tensor"),
        *("parallelism.pipeline", "parallelism.expert", "parallelism.context"),
        *("parallelism.engine", "parallelism.zero", "parallelism.offload_optimizer"),
        *("parallelism.expert_dispatch", "parallelism.expert_overlap"),
        *("parallelism.expert_aware", "parallelism.expert_divisor"),
        "parallelism.sequence_parallel",
        *("parallelism.microbatch_sequences", "parallelism.recompute", "parallelism.compile"),
        *("parallelism.schedule", "parallelism.stages_per_rank"),
        *("parallelism.stage_balance", "parallelism.rank_order"),
    ),
    KeyGroup.MACHINE: (
        # What a run does when something breaks, and how it saves: a healthy one is the same.
        *("cluster", "watchdog", "guard", "checkpoint", "profiler"),
        *("data.folder", "data.verify", "data.write_megatron"),
        *(f"data.preparation.{key}" for key in sorted(MANNER)),
    ),
    KeyGroup.RECORD: (
        *("name", "why", "home", "works", "published", "assumed", "scale", "tracking"),
        *("evaluation.every_tokens", "evaluation.max_windows_per_source"),
        *("data.sources.*.stand_in", "data.sources.*.language"),
        *("data.sources.*.licence", "data.sources.*.origin"),
    ),
}
_BY_STEPS: Mapping[tuple[str, ...], KeyGroup] = {
    tuple(pattern.split(".")): group
    for group, patterns in _TABLE.items()
    for pattern in patterns
}
# Where inputs lie; what is in them decides. Whoever has their hashes compares these instead.
PLACES = frozenset({"files", "embedded", "tokens", "dataset", "tokenizer_folder"})
ORDER = "(order)"


def declared(path: str) -> KeyGroup | None:
    """Look ``path`` up in the table; None if it says nothing of it."""
    steps = tuple(path.split("."))
    for length in range(len(steps), 0, -1):
        found = [
            group
            for pattern, group in _BY_STEPS.items()
            if len(pattern) == length
            and all(one in {"*", step} for one, step in zip(pattern, steps, strict=False))
        ]
        if found:
            return found[0]
    return None


def degrees_that_compute(*, experts: bool, divisor: str) -> dict[str, str]:
    """Name the keys of ``parallelism`` that change what experts compute, and why."""
    if not experts:
        return {}
    reasons = {
        "expert_divisor": "the size of the experts' gradients follows from it",
        "microbatch_sequences": "routers are balanced over each microbatch",
    }
    if divisor == "copies":
        reasons["expert"] = (
            "with expert_divisor=copies the experts' gradients are as many times larger as "
            "there are expert ranks"
        )
    return reasons


def without_profile(keys: Iterable[str]) -> list[str]:
    """Leave out what follows from ``cluster.name``, where that is among the keys."""
    listed = list(keys)
    another = _CLUSTER in listed
    return [key for key in listed if not (another and key.startswith(_PROFILE))]


def computing_keys(tree: Mapping[str, Any]) -> frozenset[str]:
    """Name the keys of ``parallelism`` that change what this recipe computes."""
    degrees = degrees_that_compute(
        experts=tree["model"].get("mlp", {}).get("num_experts") is not None,
        divisor=str(tree["parallelism"].get("expert_divisor")),
    )
    return frozenset(f"parallelism.{key}" for key in degrees)


def split(tree: Mapping[str, Any]) -> dict[KeyGroup, dict[str, Any]]:
    """Deal the leaves of a settled recipe's tree to their groups, by dotted path.

    The phases of a schedule follow one another in the order of their names in the tree: that
    order is a leaf of its own.
    """
    dealt: dict[KeyGroup, dict[str, Any]] = {group: {} for group in KeyGroup}
    computing = computing_keys(tree)
    for path, value in leaves(tree):
        group = KeyGroup.MATHEMATICS if path in computing else declared(path)
        assert group is not None, f"{path} has no group"
        dealt[group][path] = value
    phases = tree["schedule"].get("phases")
    if isinstance(phases, Mapping):
        dealt[KeyGroup.MATHEMATICS][f"schedule.phases {ORDER}"] = list(phases)
    return dealt


def fingerprint_of(tree: Mapping[str, Any], group: KeyGroup) -> str:
    """Hash one group's leaves: the same for two recipes if and only if none of them differs."""
    return sha256(json.dumps(split(tree)[group], sort_keys=True).encode()).hexdigest()
