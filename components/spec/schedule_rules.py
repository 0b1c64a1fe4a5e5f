"""Rules between the numbers of a schedule, in each of its phases if it has some.

Keys, not class names, carry the rules: a new schedule with the same keys keeps them too.
"""

from collections.abc import Mapping
from typing import Any

from components.errors import RecipeError

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
