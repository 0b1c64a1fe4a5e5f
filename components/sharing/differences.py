"""Differences of two recipes by group, with software, data and losses if both have them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from components.config.key_groups import PLACES, KeyGroup, split_by_group
from components.run.provenance import COMPUTING, Software
from components.sharing.lock import Lock, PreparedHashes, without_own_folders

Leaves = Mapping[str, Any]
DifferingPairs = dict[str, tuple[Any, Any]]
DifferenceGroups = dict[KeyGroup, DifferingPairs]
# Each rank draws dropout masks for its part, so these keys change the masks.
MASKS = tuple(f"parallelism.{key}" for key in ("tensor", "context", "microbatch_sequences"))
LIBRARY = "python/"  # embedded corpora drawn from the running interpreter


@dataclass(frozen=True)
class Side:
    """One side: the tree of a resolved recipe, and software, data and losses if known."""

    label: str
    tree: Mapping[str, Any]
    software: Software | None = None
    data: PreparedHashes | None = None
    damage: Mapping[str, str] = field(default_factory=dict)
    losses: Mapping[str, Any] | None = None


def side_of(lock: Lock, label: str) -> Side:
    """Return a lock as a side named ``label``."""
    return Side(
        label=label,
        tree=lock.model_dump(mode="json")["resolved"],
        software=lock.software,
        data=lock.data if isinstance(lock.data, PreparedHashes) else None,
        losses=None if isinstance(lock.losses, str) else lock.losses.model_dump(),
    )


def compare_sides(a: Side, b: Side) -> DifferenceGroups:
    """Return the differing keys by group, with both sides' values."""
    left, right = split_by_group(a.tree), split_by_group(b.tree)
    differing = {group: _differing(left[group], right[group]) for group in KeyGroup}
    computes = differing[KeyGroup.MATHEMATICS]
    _merge_degrees(computes, differing[KeyGroup.LAYOUT])
    if a.data and b.data:
        if a.data == b.data:
            for key in [key for key in computes if key.startswith("data.")]:
                if not PLACES.isdisjoint(key.split(".")):
                    differing[KeyGroup.RECORD][key] = computes.pop(key)
        computes |= _differing(_data_leaves(a.data), _data_leaves(b.data))
    for name, problem in {**a.damage, **b.damage}.items():
        computes[f"data: {name}"] = ("as it was prepared", problem)
    if a.software and b.software:
        for group, keys in _software(a.software, b.software).items():
            differing[group] |= keys
    sources = [source for side in (a, b) for source in side.tree["data"]["sources"].values()]
    library = any(str(source.get("embedded")).startswith(LIBRARY) for source in sources)
    if library and not (a.data and b.data) and "python" in differing[KeyGroup.MACHINE]:
        # The model is trained on the text of Python's library.
        computes["python"] = differing[KeyGroup.MACHINE].pop("python")
    if a.losses and b.losses:
        computes |= _differing(_named(a.losses, "losses"), _named(b.losses, "losses"))
    return differing


def list_notes(a: Side, b: Side, differences: DifferenceGroups) -> list[str]:
    """Return remarks on what could not be compared and on differences to explain."""
    remarks = []
    for what, key in (("code and packages", "software"), ("prepared data", "data")):
        if labels := ", ".join(side.label for side in (a, b) if getattr(side, key) is None):
            remarks.append(f"not compared: {what}, which {labels} did not record")
    computes = split_by_group(a.tree)[KeyGroup.MATHEMATICS]
    drops = [key for key, value in computes.items() if key.endswith("dropout") and value != 0]
    if drops and any(key in differences[KeyGroup.LAYOUT] for key in MASKS):
        masks = "the other layout draws different, equivalent dropout masks"
        remarks.append(f"{drops[0]} is above 0: {masks}")
    machine = {key.partition(".")[0] for key in differences[KeyGroup.MACHINE] if "." in key}
    automatic = any(side.tree["precision"]["compute"] == "auto" for side in (a, b))
    if automatic and "cluster" in machine:
        follows = "the dtype depends on the device, bfloat16 if supported"
        remarks.append(f"precision.compute is auto: {follows}")
    if "packages" in machine:
        same = "give equal results up to rounding, not bit for bit"
        remarks.append(f"different package versions {same}")
    return remarks


def as_json(differences: DifferenceGroups) -> dict[str, Any]:
    """Return verdicts and differences in the format of ``output=json``."""
    return {
        "same_mathematics": not differences[KeyGroup.MATHEMATICS],
        "same_layout": not differences[KeyGroup.LAYOUT],
        "same_machine": not differences[KeyGroup.MACHINE],
        "differences": {
            group.value: [{"key": key, "a": a, "b": b} for key, (a, b) in keys.items()]
            for group, keys in differences.items()
        },
    }


def _differing(a: Leaves, b: Leaves) -> DifferingPairs:
    """Return differing values in pairs. A key that one side lacks has None there."""
    return {
        key: (a.get(key), b.get(key))
        for key in dict.fromkeys([*a, *b])
        if key not in a or key not in b or _differs(a[key], b[key])
    }


def _differs(a: object, b: object) -> bool:
    """Compare two values. A path equals its replacement in a lock."""
    forms = [{repr(value), repr(without_own_folders(value))} for value in (a, b)]
    return forms[0].isdisjoint(forms[1])


def _merge_degrees(computes: DifferingPairs, layout: DifferingPairs) -> None:
    """Move keys that are in both groups to ``computes``, and drop them if the sides agree.

    A degree of parallelism is in both if it is mathematics on one side only.
    """
    for key in computes.keys() & layout.keys():
        both = zip(computes[key], layout.pop(key), strict=True)
        a, b = (other if value is None else value for value, other in both)
        computes[key] = (a, b)
        if a == b:
            del computes[key]


def _data_leaves(data: PreparedHashes) -> Leaves:
    tree = data.model_dump(mode="json")
    return {
        "data: key": tree["key"],
        **{f"data: {name}": digest for name, digest in tree["tokenizer"].items()},
        **{f"data: source {name}": digest for name, digest in tree["sources"].items()},
    }


def _software(a: Software, b: Software) -> DifferenceGroups:
    rooms = _differing(_named(a.code.rooms, "code"), _named(b.code.rooms, "code"))
    names = {f"code.{room}" for room in COMPUTING}
    computing = {key: pair for key, pair in rooms.items() if key in names}
    code = [{"code.commit": s.code.commit, "code.changes": s.code.changes} for s in (a, b)]
    packages = [{"python": side.python, **_named(side.packages, "packages")} for side in (a, b)]
    return {
        KeyGroup.MATHEMATICS: computing,
        KeyGroup.MACHINE: _differing(*packages),
        KeyGroup.RECORD: _differing(*code)
        | {key: pair for key, pair in rooms.items() if key not in names},
    }


def _named(leaves: Leaves, name: str) -> Leaves:
    return {f"{name}.{key}": value for key, value in leaves.items()}
