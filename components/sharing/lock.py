"""Locks: one file that says what a run was, down to the bytes it read.

A bundle is a lock that also carries the composed recipe of full size, so that it can be run
where nobody has the first one's files.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from components.config.key_groups import KeyGroup
from components.config.recipe_text import recipe_lines
from components.config.schema.types import Count, FrozenMapping, Node, OrNone, Section
from components.run.provenance import Software

FORMAT = 1
SEAL = re.compile(r"# sha256 of all lines below: ([0-9a-f]{64})\n")
HASH_DIGITS = 6  # of the fingerprint, in a file's name


class RecipeRequest(Section):
    """What the command line chose: a recipe, options of groups, values of keys."""

    recipe: str
    choices: FrozenMapping[str]
    values: Node


class PreparedHashes(Section):
    """Hashes of what training reads; ``key`` is of all that went in."""

    key: str
    tokenizer: FrozenMapping[str]
    sources: FrozenMapping[str]


class Losses(Section):
    """The training losses of a run: ``sha256`` is of all of them, each as ``float.hex``."""

    steps: Count
    first: float
    last: float
    sha256: str


class Fingerprints(Section):
    """A hash of what each group of keys decides."""

    mathematics: str
    layout: str
    machine: str
    record: str

    def of(self, group: KeyGroup) -> str:
        return str(getattr(self, group.value))


class Lock(Section):
    """What was asked, what it settled to, and on what it rests."""

    lock: Literal[1]
    asked: RecipeRequest
    fingerprint: Fingerprints
    software: Software
    data: OrNone[PreparedHashes]
    losses: OrNone[Losses]
    settled: Node
    composed: Node | Literal["none"]

    @property
    def is_bundle(self) -> bool:
        return not isinstance(self.composed, str)


def without_own_folders(value: Any) -> Any:
    """Replace the absolute paths in a tree that is published: they name the author's folders.

    A path below the working folder becomes relative to it. Any other becomes
    ``elsewhere/HASH/NAME``, which matches no file of a receiver by accident.
    """
    if isinstance(value, Mapping):
        return {key: without_own_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_own_folders(item) for item in value]
    if not isinstance(value, str) or value.startswith("/dev/"):
        return value
    path = Path(value).expanduser() if re.match(r"~(/|$)", value) else Path(value)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    if path.is_absolute():
        is_folder = path == Path.home() or (path.is_dir() and path.parent == Path.home().parent)
        return f"elsewhere/{_sha256(str(path))[:HASH_DIGITS]}/{'' if is_folder else path.name}"
    return value.replace(str(Path.home()), "~")


def losses_of(losses: list[float]) -> Losses:
    """Keep two losses to read and a hash of all."""
    digest = _sha256("\n".join(loss.hex() for loss in losses))
    return Losses(steps=len(losses), first=losses[0], last=losses[-1], sha256=digest)


def write_text(lock: Lock, head: str) -> str:
    """Write a lock for people: ``head`` as a comment, then the seal, then YAML."""
    tree = lock.model_dump(mode="json")
    body = "".join(f"{line.text}\n" for line in recipe_lines(tree, frozenset()))
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    return f"{comment}# sha256 of all lines below: {_sha256(body)}\n{body}"


def is_sealed(text: str) -> bool:
    """Return whether every byte below the seal is the one that was written."""
    found = SEAL.search(text)
    return found is not None and _sha256(text[found.end() :]) == found.group(1)


def _sha256(text: str) -> str:
    return sha256(text.encode()).hexdigest()
