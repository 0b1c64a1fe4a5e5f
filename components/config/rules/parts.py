"""Rules of ``model``, ``data`` and ``schedule``, each by itself.

Keys, not class names, carry the rules: a new part with the same keys keeps them too.
"""

from collections.abc import Mapping
from typing import Any

from components.config.schema.data import DataSection, Source
from components.config.targets import nearest
from components.errors import RecipeError

NORMS = ("norm", "embedding_norm", "attention.qk_norm")
SHARES_TOLERANCE = 1e-6  # shares are written with six decimals
PEAKS = ("start", "value")  # where a warm-up ends


def check_model(model: Mapping[str, Any]) -> None:
    """Hold every rule of the section.

    Raises:
        RecipeError: a norm with a bias that does not center, heads of an odd width that are
            rotated in pairs, attention weights that no kernel drops, or a padding row that the
            embedding has not.
    """
    for path in NORMS:
        norm = _at(model, path)
        if norm.get("bias", False) and not norm.get("center", True):
            problem = "true, but a norm that does not center has no bias"
            remedy = f"set model.{path}.bias=false, or model.{path}.center=true for LayerNorm"
            raise RecipeError(f"model.{path}.bias", problem, remedy)
    attention = _at(model, "attention")
    width, dropped = attention.get("head_dim", 0), attention.get("dropout", 0.0)
    if _at(model, "positions").get("base") is not None and width % 2:
        problem = f"{width} is odd, but rotary positions turn channels in pairs"
        remedy = f"use {width - 1} or {width + 1}"
        raise RecipeError("model.attention.head_dim", problem, remedy)
    if attention.get("backend") == "flex" and dropped > 0:
        problem = (
            f"flex cannot drop attention weights, but model.attention.dropout is {dropped}"
        )
        remedy = "use auto or sdpa, or model.attention.dropout=0.0"
        raise RecipeError("model.attention.backend", problem, remedy)
    row, rows = _at(model, "initialization").get("padding_row"), model["padded_vocab_size"]
    if row is not None and not 0 <= row < rows:
        problem = f"there is no row {row} among {rows:,}"
        remedy = f"use 0 to {rows - 1:,}, or null for none"
        raise RecipeError("model.initialization.padding_row", problem, remedy)


def _at(model: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Find a part that names a class: only the arguments of such are checked before."""
    here: Any = model
    for step in path.split("."):
        here = here.get(step) if isinstance(here, Mapping) else None
    return here if isinstance(here, Mapping) and "_target_" in here else {}


def check_data(data: DataSection, *, total_tokens: int) -> None:
    """Hold every rule of the section.

    Raises:
        RecipeError: the first rule that is broken.
    """
    if data.mixture == "given":
        _check_sum("data.shares", data.shares)
    elif data.shares:
        problem = f"{len(data.shares)} shares are given, but data.mixture computes them"
        remedy = "set data.shares={} too, or data.mixture=given"
        raise RecipeError("data.shares", problem, remedy)
    for name, phase in data.phases.items():
        path = f"data.phases.{name}"
        if (phase.from_tokens is None) == (phase.from_fraction is None):
            problem = "says not once where it begins"
            raise RecipeError(path, problem, "give it either from_tokens or from_fraction")
        if phase.from_tokens is not None and phase.from_tokens >= total_tokens:
            problem = (
                f"{phase.from_tokens:,} is not inside the budget of {total_tokens:,} tokens"
            )
            remedy = "let it begin earlier, or leave it out"
            raise RecipeError(f"{path}.from_tokens", problem, remedy)
        _check_sum(f"{path}.shares", phase.shares)
    for name, source in data.sources.items():
        if name not in data.names:
            problem = "no share is given for this source"
            remedy = f"set data.shares.{name}=...; sources {nearest(name, list(data.names))}"
            raise RecipeError(f"data.sources.{name}", problem, remedy)
        _check_source(f"data.sources.{name}", source, document_mask=data.document_mask)
    # Token files and text of one run have one tokenizer, which is not trained on the text.
    tokens = [name for name, source in data.sources.items() if source.tokens]
    texts = [name for name, s in data.sources.items() if s.has_text and not s.tokens]
    if tokens and texts and data.tokenizer_folder == "none":
        raise RecipeError(
            "data.tokenizer_folder",
            f"none, but {tokens[0]} has tokens already, and the text of {texts[0]} needs the "
            "tokenizer that wrote them",
            "name the folder that holds its tokenizer.json or tokenizer.model",
        )


def _check_sum(path: str, shares: Mapping[str, float]) -> None:
    total = sum(shares.values())
    if abs(total - 1) > SHARES_TOLERANCE:
        remedy = f"divide each by {total:.6f}, or change one by {1 - total:+.6f}"
        raise RecipeError(path, f"{len(shares)} shares add up to {total:.6f}, not to 1", remedy)


def _check_source(path: str, source: Source, *, document_mask: bool) -> None:
    kinds = ("files", "embedded", "tokens", "dataset")
    given = [kind for kind in kinds if getattr(source, kind)]
    if len(given) > 1:
        raise RecipeError(path, f"{' and '.join(given)} exclude each other", "give one of them")
    if source.eod == "absent" and not source.tokens:
        problem = "is of token files, and there are none"
        raise RecipeError(f"{path}.eod", problem, "leave it out")
    if source.eod == "absent" and document_mask:
        problem = "absent, but data.document_mask needs to see where documents end"
        remedy = "set data.document_mask=false, or tokenize again with --append-eod"
        raise RecipeError(f"{path}.eod", problem, remedy)


def check_schedule(schedule: Mapping[str, Any], path: str = "schedule") -> None:
    """Hold every rule of the section.

    Raises:
        RecipeError: as below, or a warm-up that leaves nothing of the schedule, or falls.
    """
    for where, phase in check_phases(schedule, path).items():
        check_schedule(phase, where)
    if "warmup_tokens" not in schedule:
        return
    warmup, total = schedule["warmup_tokens"], schedule.get("total_tokens")
    if total is not None and warmup >= total:
        problem = f"{warmup:,} leaves nothing of total_tokens {total:,}"
        remedy = "shorten the warm-up or lengthen the schedule"
        raise RecipeError(f"{path}.warmup_tokens", problem, remedy)
    first = schedule.get("warmup_from", 0.0)
    for key in PEAKS:
        if (peak := schedule.get(key, first)) < first:
            problem = f"{first} is above {key} {peak}, where the warm-up ends"
            none = "for no warm-up warmup_tokens=0 and warmup_from=0.0"
            raise RecipeError(f"{path}.warmup_from", problem, f"give at most {peak}, or {none}")


def check_phases(
    schedule: Mapping[str, Any], path: str = "schedule"
) -> dict[str, Mapping[str, Any]]:
    """Give the phases of a schedule, by their paths; none if it has no such key.

    Raises:
        RecipeError: there is no phase at all, or one that names no class: only the arguments of
            a class have types that are checked.
    """
    if "phases" not in schedule:
        return {}
    phases = {f"{path}.phases.{name}": phase for name, phase in schedule["phases"].items()}
    if not phases:
        raise RecipeError(f"{path}.phases", "is empty", "name at least one phase")
    for where, phase in phases.items():
        if not isinstance(phase, Mapping) or "_target_" not in phase:
            remedy = "copy a phase of a recipe that has some, with its _target_"
            raise RecipeError(where, "is no schedule: it names no class", remedy)
    return phases
