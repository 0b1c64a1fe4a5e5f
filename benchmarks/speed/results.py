"""What a kept result says of itself; what it does not say, the page names as missing."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.kept import RESULTS

Result = Mapping[str, Any]

TOLD_OF_ITSELF = ("peer", "convention", "shape", "date", "machine", "versions")
# Results from before `benchmarks.kept.circumstances` have their shapes under these.
SHAPES = (
    *("shape", "model", "block", "recipe", "settings", "threads", "workers", "tokens_per_step"),
    *("rounds", "steps", "pairs", "bytes", "megabytes"),
)


def read_result(stem: str) -> Result | None:
    """Read what a benchmark has kept, if it has."""
    file = RESULTS / f"{stem}.json"
    if not file.exists():
        return None
    found: Result = json.loads(file.read_text("utf-8"))
    return found


def merged(parts: Mapping[str, Result], whole: Result) -> Result:
    """Take what parts of one file say of themselves, or, from before they did, the file.

    Parts are measured one by one: each has its date.
    """
    told = [part for part in parts.values() if "convention" in part]
    if not told:
        return whole
    dates = {name: part["date"] for name, part in parts.items() if "date" in part}
    return {**told[0], **({"date": dates} if dates else {})}


def circumstances_of(result: Result) -> tuple[dict[str, str], list[str]]:
    """Return what a result says of itself, in words, and the names of what it does not say."""
    told = {name: words(result[name]) for name in TOLD_OF_ITSELF if name in result}
    if "shape" not in told and (shape := shape_before(result)):
        told["shape"] = shape
    if "machine" not in told and "processor" in result:
        told["machine"] = words({name: result[name] for name in ("processor", "cores")})
    if "versions" not in told and "torch" in result:
        told["versions"] = words({"torch": result["torch"]})
    return told, [name for name in TOLD_OF_ITSELF if name not in told]


def shape_before(result: Result) -> str:
    """Collect the shape of a result that keeps its parts under names of their own."""
    return words({name: result[name] for name in SHAPES if name in result})


def words(value: object) -> str:
    """Write any kept value in a line; what has parts of its own stands in brackets."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name.replace('_', ' ')} {_part(one)}" for name, one in value.items()
        )
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return " ".join(words(one) for one in value)
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return str(value)


def _part(value: object) -> str:
    return f"({words(value)})" if isinstance(value, Mapping) else words(value)
