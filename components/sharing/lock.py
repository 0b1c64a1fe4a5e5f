"""Locks: one file that describes a run completely, including hashes of the data it read.

A bundle is a lock that also contains the composed recipe of full size, so that it can run on a
machine without the author's files.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from components.config.key_groups import KeyGroup
from components.config.recipe_text import recipe_lines
from components.config.schema.types import ComponentNode, Count, FrozenMapping, OrNone, Section
from components.run.provenance import Software

FORMAT = 1
SEAL = re.compile(r"# sha256 of all lines below: ([0-9a-f]{64})\n")
HASH_DIGITS = 6  # of the fingerprint in file names


class RecipeRequest(Section):
    """Choices of the command line: a recipe, options of groups, values of keys."""

    recipe: str
    choices: FrozenMapping[str]
    values: ComponentNode


class PreparedHashes(Section):
    """Hashes of the data that training reads. ``key`` covers all inputs of the preparation."""

    key: str
    tokenizer: FrozenMapping[str]
    sources: FrozenMapping[str]


class Losses(Section):
    """Training losses of a run. ``sha256`` covers all losses, each as ``float.hex``."""

    steps: Count
    first: float
    last: float
    sha256: str


class Fingerprints(Section):
    """One hash per group of keys."""

    mathematics: str
    layout: str
    machine: str
    record: str

    def of_group(self, group: KeyGroup) -> str:
        return str(getattr(self, group.value))


class Lock(Section):
    """The request, the resolved recipe, its software, data and losses."""

    lock: Literal[1]
    requested: RecipeRequest
    fingerprint: Fingerprints
    software: Software
    data: OrNone[PreparedHashes]
    losses: OrNone[Losses]
    resolved: ComponentNode
    composed: ComponentNode | Literal["none"]

    @property
    def is_bundle(self) -> bool:
        return not isinstance(self.composed, str)


def without_own_folders(value: Any) -> Any:
    """Replace absolute paths in a tree before publication, because they name private folders.

    A path below the working folder becomes relative. Any other absolute path becomes
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
    """Return the first loss, the last loss, and a hash of all losses."""
    digest = _sha256("\n".join(loss.hex() for loss in losses))
    return Losses(steps=len(losses), first=losses[0], last=losses[-1], sha256=digest)


def write_text(lock: Lock, head: str) -> str:
    """Return the text of a lock: ``head`` as a comment, then the seal, then YAML."""
    tree = lock.model_dump(mode="json")
    body = "".join(f"{line.text}\n" for line in recipe_lines(tree, frozenset()))
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    return f"{comment}# sha256 of all lines below: {_sha256(body)}\n{body}"


def is_sealed(text: str) -> bool:
    """Return whether the text below the seal matches the seal's hash."""
    seal = SEAL.search(text)
    return seal is not None and _sha256(text[seal.end() :]) == seal.group(1)


def _sha256(text: str) -> str:
    return sha256(text.encode()).hexdigest()
