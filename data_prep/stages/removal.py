"""Why a document goes: too long, empty, or what one of the recipe's document steps says."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from datatrove.data import Document

from components.spec.document_steps import DocumentSteps

if TYPE_CHECKING:
    from data_prep.steps import DocumentStep

WHERE = "data.preparation"


def build(settings: Mapping[str, Any], source: str) -> "list[DocumentStep]":
    """Build the document steps of those sections that ``settings`` has; the others are none."""
    if all(section == "none" for section in settings.values()):
        return []
    from data_prep.steps import build_steps  # slow to import: only who has steps pays

    none = dict.fromkeys(DocumentSteps.model_fields, "none")
    steps = DocumentSteps.model_validate({**none, **settings})
    return build_steps(steps, source=source, where=WHERE)


def why_removed(
    document: Document, steps: "Sequence[DocumentStep]", *, longest_bytes: int | str
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
