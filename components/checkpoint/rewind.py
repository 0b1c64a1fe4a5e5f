"""Rewind of a run to an earlier checkpoint, with its optimizer's state or a fresh one.

Optimus (https://arxiv.org/abs/2604.00785, section 4) keeps weights alone for good, goes back to
them after an instability, and begins there with fresh moments. What a run goes on from is its
newest full checkpoint: so a rewind makes one of the weights, and sets the later ones aside.
"""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from components.checkpoint.choice import checkpoint_of
from components.checkpoint.metadata import MARKER, Marker, name_of
from components.checkpoint.retention import beside, complete, later_than, mark
from components.run.disk import check_room

ASIDE = "left"  # a folder among the checkpoints, of those that a run has gone back from


@dataclass(frozen=True)
class Rewound:
    """The checkpoint that the run goes on from, and the names of those set aside."""

    checkpoint: Path
    marker: Marker
    left: tuple[str, ...]


def rewind(folder: Path, tokens: int, *, fresh_optimizer: bool) -> Rewound:
    """Let the run with checkpoints in ``folder`` go on from the one after ``tokens``.

    Interrupted it has done nothing, or is done by the same call again. Weights alone do only
    with a ``fresh_optimizer``.

    Raises:
        RecipeError: there is no such checkpoint, or it is not whole.
        OSError: the file system forbids it, is full or has gone.
    """
    chosen = checkpoint_of(folder, tokens, weights=fresh_optimizer)
    target = folder / name_of("tokens", tokens)
    marker = replace(chosen.marker, kind="tokens", fresh_optimizer=fresh_optimizer)
    if chosen.checkpoint != target:
        link(chosen.checkpoint, target, marker)
    elif fresh_optimizer and marker != chosen.marker:
        mark(target, marker)
    left = later_than(target)
    for one in left:
        aside = folder / ASIDE / one.name
        aside.parent.mkdir(exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)  # of an earlier rewind
        one.rename(aside)
    return Rewound(target, marker, tuple(one.name for one in left))


def link(checkpoint: Path, target: Path, marker: Marker) -> None:
    """Make a full checkpoint of another one, of the same files where links can be made."""
    shutil.rmtree(beside(target), ignore_errors=True)
    beside(target).mkdir()
    for name in marker.files:
        try:
            os.link(checkpoint / name, beside(target) / name)
        except OSError:
            check_room(target.parent, needed_bytes=(checkpoint / name).stat().st_size, files=1)
            shutil.copyfile(checkpoint / name, beside(target) / name)
    if (target / MARKER).exists():  # it is there and damaged
        target.rename(target.with_name(f"damaged-{target.name}"))
    complete(target, marker)
