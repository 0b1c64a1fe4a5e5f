"""What an attacker does to a valid file: set a key, cut it, put a link or a pipe in its place.

A change is a mapping, so that attacks are data. ``in`` names its file; paths into a tree are
written with ``/``, because keys have dots.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from components.run.site_card import FILE_NAME as CARD
from components.sharing.lock import SEAL
from tests.attack.mutations import mutate

Change = Mapping[str, Any]
SWAPS: tuple[tuple[type, object], ...] = (
    (bool, "yes"),
    (int, [1]),
    (float, {"a": 1}),
    (str, -1),
    (list, {}),
    (dict, []),
    (type(None), {"a": [None]}),
)
SECRET = "the-secret-of-somebody"


def apply(changes: list[Change], here: Path, main: str) -> None:
    """Apply all changes in order; a file that none names is ``main``."""
    for change in changes:
        name = str(change.get("in", main))
        file = next(here.glob(name)) if "*" in name else here / name
        for verb in change:
            if verb in REPLACEMENTS:
                _free(file)
                REPLACEMENTS[verb](file, change[verb])
            elif verb not in {"in", "seal"}:
                VERBS[verb](file, change[verb])
        if _is_lock(file, change) and change.get("seal", True):
            _renew_seal(file)
        if file.name == CARD and "set" in change and change.get("seal", True):
            _renew_hash(file)


def _is_lock(file: Path, change: Change) -> bool:
    return (
        change.keys() & {"set", "drop", "replace", "copy", "mutate"} != set()
        and file.suffix == ".yaml"
    )


def _renew_hash(file: Path) -> None:
    """Recompute the hash of a site card, as an attacker can."""
    tree = {key: value for key, value in read_tree(file).items() if key != "sha256"}
    digest = sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps({**tree, "sha256": digest}, indent=1), "utf-8")


def _renew_seal(file: Path) -> None:
    """Recompute the seal of a lock, as an attacker can: it is no signature."""
    text = file.read_bytes().decode("utf-8", "surrogateescape")
    found = SEAL.search(text)
    if found is None:
        return
    body = text[found.end() :]
    sealed = body.encode("utf-8", "surrogateescape")
    head = f"# sha256 of all lines below: {sha256(sealed).hexdigest()}\n"
    file.write_bytes(head.encode() + sealed)


def read_tree(file: Path) -> Any:
    """Read a YAML or JSON file as its program would; one of lines as a list."""
    text = file.read_text("utf-8")
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return yaml.safe_load(text) if file.suffix == ".yaml" else json.loads(text)


def write_tree(file: Path, tree: object) -> None:
    """Write it back; a lock keeps the line of its seal."""
    if file.suffix == ".jsonl" and isinstance(tree, list):
        file.write_text("".join(f"{json.dumps(line)}\n" for line in tree), "utf-8")
        return
    if file.suffix != ".yaml":
        file.write_text(json.dumps(tree), "utf-8")
        return
    found = SEAL.search(file.read_text("utf-8")) if file.is_file() else None
    body = yaml.safe_dump(tree, sort_keys=False, width=10_000)
    file.write_text((found.group() if found else "") + body, "utf-8")


def _set(file: Path, values: Mapping[str, Any]) -> None:
    tree = read_tree(file)
    for path, value in values.items():
        here, last = _reach(tree, path)
        here[last] = value
    write_tree(file, tree)


def _copy(file: Path, values: Mapping[str, str]) -> None:
    """Set keys to the values of other keys."""
    tree = read_tree(file)
    for path, other in values.items():
        (here, last), (there, name) = _reach(tree, path), _reach(tree, other)
        here[last] = there[name]
    write_tree(file, tree)


def _swap(file: Path, key: str) -> None:
    """Give a field another type than it has."""
    tree = read_tree(file)
    here, last = _reach(tree, key)
    here[last] = next(wrong for kind, wrong in SWAPS if isinstance(here[last], kind))
    write_tree(file, tree)


def _drop(file: Path, paths: list[str]) -> None:
    tree = read_tree(file)
    for path in paths:
        here, last = _reach(tree, path)
        del here[last]
    write_tree(file, tree)


def _reach(tree: Any, path: str) -> tuple[Any, Any]:
    *before, last = path.split("/")
    for name in before:
        step = int(name) if name.isdecimal() else name
        if isinstance(tree, dict) and not isinstance(tree.get(step), dict | list):
            tree[step] = {}
        tree = tree[step]
    return tree, int(last) if isinstance(tree, list) else last


def _replace(file: Path, texts: Mapping[str, str]) -> None:
    text = file.read_text("utf-8")
    for old, new in texts.items():
        assert old in text, f"{file.name} has no {old!r}"
        text = text.replace(old, new, 1)
    file.write_text(text, "utf-8")


def _append(file: Path, text: str) -> None:
    with file.open("ab") as stream:
        stream.write(text.encode("latin-1"))


def _zeros(file: Path, count: int) -> None:
    """Make a file of zeros that takes no room on the disk."""
    file.touch()
    os.truncate(file, count)


def _bomb(file: Path, depth: int) -> None:
    """Name the entry before twice, each time."""
    tree = read_tree(file)
    entries = {"e0": {"value": 1.0, "unit": "x", "source": "s" * 10}}
    for level in range(1, depth):
        twice = f"${{published.e{level - 1}.source}}" * 2
        entries[f"e{level}"] = {"value": 1.0, "unit": "x", "source": twice}
    tree["published"] = entries
    write_tree(file, tree)


def _held(file: Path, _: bool) -> None:
    """Hold a run's lock, as its writer does, from the process that forks the cases."""
    fcntl.flock(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)


def _free(file: Path) -> None:
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    else:
        file.unlink(missing_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)


# What takes the place of a file or a folder.
REPLACEMENTS: Mapping[str, Callable[[Path, Any], object]] = {
    "text": lambda file, text: file.write_text(text, "utf-8"),
    "bytes": lambda file, text: file.write_bytes(text.encode("latin-1")),
    "link": lambda file, target: file.symlink_to(target),
    "hard_link": lambda file, target: file.hardlink_to(file.parent / target),
    "pipe": lambda file, _: os.mkfifo(file),
    "folder": lambda file, _: file.mkdir(),
    "gone": lambda *_: None,
    "brackets": lambda file, count: file.write_text("[" * count, "utf-8"),
    "zeros": _zeros,
    "held": _held,
}
VERBS: Mapping[str, Callable[[Path, Any], object]] = {
    "set": _set,
    "copy": _copy,
    "mutate": mutate,
    "swap": _swap,
    "drop": _drop,
    "replace": _replace,
    "append": _append,
    "cut": lambda file, length: file.write_bytes(file.read_bytes()[:length]),
    "bomb": _bomb,
    "mode": lambda file, mode: file.chmod(mode),
}
