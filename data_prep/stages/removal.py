"""Why a document goes: too long, empty, or what one of the recipe's document steps says."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from datatrove.data import Document

EVERY_STEP = ("normalise", "language", "filters", "personal_data")


class Step(Protocol):
    """Change a document in place and keep it (None), or say why it is removed."""

    name: str

    def __call__(self, document: Document) -> str | None: ...


def build(settings: Mapping[str, Any]) -> Sequence[Step]:
    """Build the document steps of the sections named in ``settings``; the others are none."""
    if set(settings.values()) <= {"none"}:
        return []
    steps = import_module("data_prep.steps")
    built: Sequence[Step] = steps.build_steps({**dict.fromkeys(EVERY_STEP, "none"), **settings})
    return built


def why_removed(
    document: Document, steps: Sequence[Step], *, longest_bytes: int | str
) -> str | None:
    """Apply the steps up to the first that removes; what begins or becomes empty goes, too."""
    if isinstance(longest_bytes, int):
        size = len(document.text.encode())
        if size > longest_bytes:
            return f"too long: {size:,} bytes > {longest_bytes:,}"
    if not document.text.strip():
        return "empty"
    for step in steps:
        why = step(document)
        if why is not None:
            return why
        if not document.text.strip():
            return f"empty: after {step.name}"
    return None
