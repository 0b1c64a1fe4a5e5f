"""Which checkpoints stay: the last ones, those of a cadence for good, and the best ones."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from components.checkpoint.marker import (
    MARKER,
    DamagedCheckpointError,
    complete_checkpoints,
    read_marker,
    tokens_of,
)


class Saved(NamedTuple):
    """One checkpoint, as far as it matters for keeping it."""

    tokens: int
    held_out_loss: float | None


@dataclass(frozen=True, kw_only=True)
class Policy:
    """``last`` ones, the first in every ``every_tokens``, and the ``best`` by held-out loss."""

    last: int
    every_tokens: int | Literal["none"]
    best: int

    def kept(self, saved: Sequence[Saved]) -> set[int]:
        """Choose what stays, by its tokens; removing the others changes no later choice."""
        ordered = sorted(saved)
        judged = [one for one in ordered if one.held_out_loss is not None]
        judged.sort(key=lambda one: (one.held_out_loss, one.tokens))
        chosen = [*ordered[-self.last :], *judged[: self.best]]
        return {one.tokens for one in chosen} | self.kept_for_good(saved)

    def kept_for_good(self, saved: Sequence[Saved]) -> set[int]:
        """Choose the first checkpoint at or after every multiple of ``every_tokens``."""
        if self.every_tokens == "none":
            return set()
        firsts: dict[int, int] = {}
        for one in sorted(saved):
            firsts.setdefault(one.tokens // self.every_tokens, one.tokens)
        return {tokens for multiple, tokens in firsts.items() if multiple}


def saved_in(folder: Path) -> dict[Path, Saved]:
    """Read the markers of all complete checkpoints; one that cannot be read has no loss."""
    found = {}
    for checkpoint in complete_checkpoints(folder):
        try:
            loss = read_marker(checkpoint).held_out_loss
        except DamagedCheckpointError:
            loss = None
        found[checkpoint] = Saved(tokens_of(checkpoint), loss)
    return found


def prune(folder: Path, policy: Policy) -> None:
    """Remove what the policy does not keep, oldest first, and what was never completed."""
    saved = saved_in(folder)
    kept = policy.kept(list(saved.values()))
    for checkpoint, one in sorted(saved.items()):
        if one.tokens not in kept:
            (checkpoint / MARKER).unlink()  # without it a half-removed one is not taken
    remove_incomplete(folder)


def drop_after(checkpoint: Path) -> list[str]:
    """Remove all later ones, the last first, and return their names."""
    folder = checkpoint.parent
    later = [one for one in complete_checkpoints(folder) if one > checkpoint]
    for one in later:
        (one / MARKER).unlink()
    remove_incomplete(folder)
    return [one.name for one in later]


def remove_incomplete(folder: Path) -> None:
    """Remove what an interrupted save or an interrupted removal has left."""
    for one in [*folder.glob(".tokens-*"), *folder.glob(".weights-*")]:
        if one.is_dir():
            shutil.rmtree(one)
        else:  # a marker that was to be amended
            one.unlink()
    for one in [*folder.glob("tokens-*/"), *folder.glob("weights-*/")]:
        if not (one / MARKER).exists():
            shutil.rmtree(one)
