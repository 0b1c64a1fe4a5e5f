"""The names of the points of a sweep, as folders can be called, and where these folders are."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from cluster.user import PLAIN, read_user
from command.arguments import ROOT, Arguments

LONGEST = 200  # a file system takes 255


def labels(points: Sequence[Sequence[str]]) -> list[str]:
    """Name each point by the words that not all points have, as a folder can be called."""
    common = set.intersection(*(set(words) for words in points))
    return [as_folder(word for word in words if word not in common) for words in points]


def as_folder(words: Iterable[str]) -> str:
    """Join words to the name of a folder; one that is too long is cut and stays its own."""
    name = ",".join(words)
    plain = "".join(c if PLAIN.fullmatch(c) and c != "/" else "_" for c in name)
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[:LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def folder_of_runs(arguments: Arguments, stem: str, said: str) -> Path:
    """Return the folder that ``run=`` names, or one that the same words find again."""
    named = arguments.folders.get("run")
    if named is not None:
        return named.absolute()
    user = read_user(arguments.choices.get("cluster", "local"), arguments.site)
    digest = hashlib.sha256(said.encode()).hexdigest()[:8]
    return Path(user.runs or ROOT / "runs").absolute() / f"{stem}-{digest}"
