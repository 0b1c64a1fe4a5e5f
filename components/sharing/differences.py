"""What tells two recipes apart, by group, with what they rest on where both sides know it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from components.config.key_groups import PLACES, KeyGroup, split
from components.run.provenance import COMPUTING, Software
from components.sharing.lock import Lock, PreparedHashes, without_own_folders

Leaves = Mapping[str, Any]
Pairs = dict[str, tuple[Any, Any]]
Found = dict[KeyGroup, Pairs]
# Each rank draws the masks of what it holds: with these, others of the same kind.
MASKS = tuple(f"parallelism.{key}" for key in ("tensor", "context", "microbatch_sequences"))
LIBRARY = "python/"  # embedded corpora drawn from the running interpreter


@dataclass(frozen=True)
class Side:
    """A settled recipe's tree; software, data and losses as far as they are known."""

    label: str
    tree: Mapping[str, Any]
    software: Software | None = None
    data: PreparedHashes | None = None
    damage: Mapping[str, str] = field(default_factory=dict)
    losses: Mapping[str, Any] | None = None


def side_of(lock: Lock, label: str) -> Side:
    """Take a lock as one side, named ``label``."""
    return Side(
        label=label,
        tree=lock.model_dump(mode="json")["settled"],
        software=lock.software,
        data=lock.data if isinstance(lock.data, PreparedHashes) else None,
        losses=None if isinstance(lock.losses, str) else lock.losses.model_dump(),
    )


def compare(a: Side, b: Side) -> Found:
    """Collect each key that differs, with the value of either side, by group."""
    left, right = split(a.tree), split(b.tree)
    found = {group: _differing(left[group], right[group]) for group in KeyGroup}
    computes = found[KeyGroup.MATHEMATICS]
    _settle_degrees(computes, found[KeyGroup.LAYOUT])
    if a.data and b.data:
        if a.data == b.data:
            for key in [key for key in computes if key.startswith("data.")]:
                if not PLACES.isdisjoint(key.split(".")):
                    found[KeyGroup.RECORD][key] = computes.pop(key)
        computes |= _differing(_data_leaves(a.data), _data_leaves(b.data))
    for name, problem in {**a.damage, **b.damage}.items():
        computes[f"data: {name}"] = ("as it was prepared", problem)
    if a.software and b.software:
        for group, keys in _software(a.software, b.software).items():
            found[group] |= keys
    sources = [source for side in (a, b) for source in side.tree["data"]["sources"].values()]
    library = any(str(source.get("embedded")).startswith(LIBRARY) for source in sources)
    if library and not (a.data and b.data) and "python" in found[KeyGroup.MACHINE]:
        computes["python"] = found[KeyGroup.MACHINE].pop("python")  # it is trained on its text
    if a.losses and b.losses:
        computes |= _differing(_named(a.losses, "losses"), _named(b.losses, "losses"))
    return found


def notes(a: Side, b: Side, found: Found) -> list[str]:
    """Describe what could not be compared, and what the groups alone would not tell."""
    said = []
    for what, key in (("code and packages", "software"), ("prepared data", "data")):
        if silent := ", ".join(side.label for side in (a, b) if getattr(side, key) is None):
            said.append(f"not compared: {what}, of which nothing is known in {silent}")
    computes = split(a.tree)[KeyGroup.MATHEMATICS]
    drops = [key for key, value in computes.items() if key.endswith("dropout") and value != 0]
    if drops and any(key in found[KeyGroup.LAYOUT] for key in MASKS):
        masks = "the other layout draws other masks, as good as these"
        said.append(f"{drops[0]} is above 0: {masks}")
    machine = {key.partition(".")[0] for key in found[KeyGroup.MACHINE] if "." in key}
    automatic = any(side.tree["precision"]["compute"] == "auto" for side in (a, b))
    if automatic and "cluster" in machine:
        follows = "it follows the device, bfloat16 where there is one"
        said.append(f"precision.compute is auto: {follows}")
    if "packages" in machine:
        same = "compute the same up to rounding, not to the bit"
        said.append(f"other versions of packages {same}")
    return said


def as_json(found: Found) -> dict[str, Any]:
    """Return the verdicts and the differences, as ``output=json`` promises them."""
    return {
        "same_mathematics": not found[KeyGroup.MATHEMATICS],
        "same_layout": not found[KeyGroup.LAYOUT],
        "same_machine": not found[KeyGroup.MACHINE],
        "differences": {
            group.value: [{"key": key, "a": a, "b": b} for key, (a, b) in keys.items()]
            for group, keys in found.items()
        },
    }


def _differing(a: Leaves, b: Leaves) -> Pairs:
    """Pair what differs; a key that one side does not have is None there."""
    return {
        key: (a.get(key), b.get(key))
        for key in dict.fromkeys([*a, *b])
        if key not in a or key not in b or _differs(a[key], b[key])
    }


def _differs(a: object, b: object) -> bool:
    """Compare two values; a path equals what a lock has in its place."""
    forms = [{repr(one), repr(without_own_folders(one))} for one in (a, b)]
    return forms[0].isdisjoint(forms[1])


def _settle_degrees(computes: Pairs, layout: Pairs) -> None:
    """A degree that computes on one side alone is in two groups: the weightier one keeps it."""
    for key in computes.keys() & layout.keys():
        both = zip(computes[key], layout.pop(key), strict=True)
        a, b = (other if one is None else one for one, other in both)
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


def _software(a: Software, b: Software) -> Found:
    rooms = _differing(_named(a.code.rooms, "code"), _named(b.code.rooms, "code"))
    names = {f"code.{room}" for room in COMPUTING}
    computing = {key: pair for key, pair in rooms.items() if key in names}
    code = [{"code.commit": s.code.commit, "code.changes": s.code.changes} for s in (a, b)]
    packages = [{"python": one.python, **_named(one.packages, "packages")} for one in (a, b)]
    return {
        KeyGroup.MATHEMATICS: computing,
        KeyGroup.MACHINE: _differing(*packages),
        KeyGroup.RECORD: _differing(*code)
        | {key: pair for key, pair in rooms.items() if key not in names},
    }


def _named(leaves: Leaves, name: str) -> Leaves:
    return {f"{name}.{key}": value for key, value in leaves.items()}
