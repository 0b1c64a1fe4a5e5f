"""Rules of ``data`` and ``schedule``: shares that add up, phases inside the budget.

Keys, not class names, carry the rules: a new schedule with the same keys keeps them too.
"""

from collections.abc import Mapping
from typing import Any

from components.config.schema.data import DataSection, Source
from components.config.targets import nearest
from components.errors import RecipeError

SHARES_TOLERANCE = 1e-6  # shares are written with six decimals


def check_data(data: DataSection, *, total_tokens: int) -> None:
    """Hold every rule of the section.

    Raises:
        RecipeError: the first rule that is broken.
    """
    _check_mixture(data)
    for name in data.phases:
        _check_phase(data, name, total_tokens)
    for name, source in data.sources.items():
        if name not in data.names:
            raise RecipeError(
                f"data.sources.{name}",
                "no share is given for this source",
                f"set data.shares.{name}=...; sources {nearest(name, list(data.names))}",
            )
        _check_source(f"data.sources.{name}", source, document_mask=data.document_mask)
    _check_tokenizer(data)


def _check_mixture(data: DataSection) -> None:
    if data.mixture == "given":
        _check_sum("data.shares", data.shares)
    elif data.shares:
        raise RecipeError(
            "data.shares",
            f"{len(data.shares)} shares are given, but data.mixture computes them",
            "set data.shares={} too, or data.mixture=given",
        )


def _check_sum(path: str, shares: Mapping[str, float]) -> None:
    total = sum(shares.values())
    if abs(total - 1) > SHARES_TOLERANCE:
        raise RecipeError(
            path,
            f"{len(shares)} shares add up to {total:.6f}, not to 1",
            f"divide each by {total:.6f}, or change one by {1 - total:+.6f}",
        )


def _check_phase(data: DataSection, name: str, total_tokens: int) -> None:
    phase, path = data.phases[name], f"data.phases.{name}"
    if (phase.from_tokens is None) == (phase.from_fraction is None):
        raise RecipeError(
            path,
            "says not once where it begins",
            "give it either from_tokens or from_fraction",
        )
    if phase.from_tokens is not None and phase.from_tokens >= total_tokens:
        raise RecipeError(
            f"{path}.from_tokens",
            f"{phase.from_tokens:,} is not inside the budget of {total_tokens:,} tokens",
            "let it begin earlier, or leave it out",
        )
    _check_sum(f"{path}.shares", phase.shares)


def _check_tokenizer(data: DataSection) -> None:
    """Token files and text of one run have one tokenizer, which is not trained on the text."""
    tokens = [name for name, source in data.sources.items() if source.tokens]
    texts = [name for name, s in data.sources.items() if s.has_text and not s.tokens]
    if tokens and texts and data.tokenizer_folder == "none":
        raise RecipeError(
            "data.tokenizer_folder",
            f"none, but {tokens[0]} has tokens already, and the text of {texts[0]} needs the "
            "tokenizer that wrote them",
            "name the folder that holds its tokenizer.json or tokenizer.model",
        )


def _check_source(path: str, source: Source, *, document_mask: bool) -> None:
    kinds = {
        "files": source.files,
        "embedded": source.embedded,
        "tokens": source.tokens,
        "dataset": source.dataset,
    }
    given = [kind for kind, value in kinds.items() if value]
    if len(given) > 1:
        raise RecipeError(path, f"{' and '.join(given)} exclude each other", "give one of them")
    if source.eod == "absent" and not source.tokens:
        raise RecipeError(
            f"{path}.eod", "is of token files, and there are none", "leave it out"
        )
    if source.eod == "absent" and document_mask:
        raise RecipeError(
            f"{path}.eod",
            "absent, but data.document_mask needs to see where documents end",
            "set data.document_mask=false, or tokenize again with --append-eod",
        )


PEAKS = ("start", "value")  # where a warm-up ends


def check_schedule(schedule: Mapping[str, Any], path: str = "schedule") -> None:
    """Hold every rule of the section.

    Raises:
        RecipeError: as below, or a warm-up that leaves nothing of the schedule, or falls.
    """
    for where, phase in check_phases(schedule, path).items():
        check_schedule(phase, where)
    if "warmup_tokens" in schedule:
        _check_warmup(schedule, path)


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


def _check_warmup(schedule: Mapping[str, Any], path: str) -> None:
    warmup, total = schedule["warmup_tokens"], schedule.get("total_tokens")
    if total is not None and warmup >= total:
        raise RecipeError(
            f"{path}.warmup_tokens",
            f"{warmup:,} leaves nothing of total_tokens {total:,}",
            "shorten the warm-up or lengthen the schedule",
        )
    first = schedule.get("warmup_from", 0.0)
    for key in PEAKS:
        if key in schedule and first > schedule[key]:
            raise RecipeError(
                f"{path}.warmup_from",
                f"{first} is above {key} {schedule[key]}, where the warm-up ends",
                f"give at most {schedule[key]}, or for no warm-up warmup_tokens=0 and "
                "warmup_from=0.0",
            )
