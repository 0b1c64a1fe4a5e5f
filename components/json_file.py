"""JSON files: read untrusted JSON within limits, and write JSON that every parser accepts.

A file in a run folder from another machine may be a pipe, larger than memory, truncated, or
nested too deeply. Reading returns a mapping or raises :class:`RecipeError`.
"""

import errno
import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from components.errors import RecipeError

MOST_BYTES = 16 << 20
DEEPEST = 64  # levels of nesting; later code walks the tree by recursion
MOST_BITS = 64  # of an integer: huge integers overflow a float and take minutes to print
COPY_AGAIN = "copy the run folder again"


def read_mapping(
    file: Path, *, finite: bool = True, remedy: str = COPY_AGAIN
) -> dict[str, Any]:
    """Read a JSON file that contains a mapping. NaN is allowed if ``finite`` is false."""
    try:
        tree = parse_json(read_bounded(file, MOST_BYTES), finite=finite)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        if error.errno != errno.ENOENT:  # the caller's remedy does not apply
            remedy = "check its permissions and the file system"
        raise RecipeError(str(file), problem, remedy) from None
    except ValueError as error:
        raise RecipeError(str(file), str(error), remedy) from None
    if not isinstance(tree, dict):
        raise RecipeError(str(file), f"is a {type(tree).__name__}, not a mapping", remedy)
    return tree


def read_bounded(file: Path, most_bytes: int) -> bytes:
    """Read a regular file; ValueError if it is none or too large, OSError if it cannot open."""
    with open_regular(file) as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"is larger than {most_bytes >> 20} MiB")
    return content


def open_regular(file: Path) -> BinaryIO:
    """Open a regular file for reading, or raise ValueError. A pipe does not block."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("is not a regular file")
    return os.fdopen(descriptor, "rb")


def parse_json(raw: bytes, *, finite: bool) -> Any:
    """Parse JSON with limits on its depth and its numbers.

    The message of the ValueError continues a sentence that starts with the file's name.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text at byte {error.start + 1}") from None
    try:
        number = _finite if finite else float
        tree = json.loads(text, parse_int=_whole, parse_float=number, parse_constant=number)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"is nested deeper than {DEEPEST}") from None
    level = [tree] if text.count("[") + text.count("{") > DEEPEST else []
    for _ in range(DEEPEST + 1):
        inner = [node for node in level if isinstance(node, dict | list)]
        level = [item for n in inner for item in (n.values() if isinstance(n, dict) else n)]
    if level:
        raise ValueError(f"is nested deeper than {DEEPEST}")
    return tree


def dump_json(tree: Any, **options: Any) -> str:
    """Return JSON text, with null for non-finite numbers; options are of :func:`json.dumps`."""
    return json.dumps(without_nan(tree)[0], allow_nan=False, **options)


def replace_nonfinite(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Replace non-finite numbers with null, and list their keys under ``not_finite``."""
    mapping, keys = without_nan(tree)
    return {**mapping, "not_finite": keys}


def without_nan(tree: Any) -> tuple[Any, list[str]]:
    """Replace NaN and infinity, which JSON lacks, by None; return the tree and their keys."""
    keys: list[str] = []

    def convert_node(node: Any, key: str) -> Any:
        if isinstance(node, Mapping):
            return {name: convert_node(value, f"{key}.{name}") for name, value in node.items()}
        if isinstance(node, list | tuple):
            return [convert_node(value, f"{key}.{place}") for place, value in enumerate(node)]
        if isinstance(node, float) and not math.isfinite(node):
            keys.append(key.removeprefix("."))
            return None
        return node

    return convert_node(tree, ""), keys


def _whole(digits: str) -> int:
    if len(digits) > MOST_BITS or (number := int(digits)).bit_length() > MOST_BITS:
        raise ValueError(f"has a number of {len(digits)} digits: {digits[:20]}...")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"has a number that is not finite: {text[:20]}")
    return number
