"""Read JSON from any source within bounds, and write JSON that every reader accepts.

A run folder can come from elsewhere. A file in it may be a pipe, larger than memory, truncated,
or nested too deeply; the reader gets a mapping or a :class:`RecipeError`.
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
DEEPEST = 64  # nesting; what walks a tree afterwards does so by recursion
MOST_BITS = 64  # of a whole number: larger ones fit no float, and print for minutes
COPY_AGAIN = "copy the run folder again"


def read_mapping(
    file: Path, *, finite: bool = True, remedy: str = COPY_AGAIN
) -> dict[str, Any]:
    """Read a JSON file that holds a mapping; without ``finite`` its numbers may be NaN.

    Raises:
        RecipeError: it is missing, no regular file, too large, no UTF-8, no JSON, or holds
            something else.
    """
    try:
        tree = parse_json(read_bounded(file, MOST_BYTES), finite=finite)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        if error.errno != errno.ENOENT:  # what the caller expects of the file is not the cause
            remedy = "check its permissions and the file system"
        raise RecipeError(str(file), problem, remedy) from None
    except ValueError as error:
        raise RecipeError(str(file), str(error), remedy) from None
    if not isinstance(tree, dict):
        raise RecipeError(str(file), f"holds a {type(tree).__name__}, not a mapping", remedy)
    return tree


def read_bounded(file: Path, most_bytes: int) -> bytes:
    """Read a regular file whole.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is not a regular file, or is too large.
    """
    with open_regular(file) as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"is larger than {most_bytes >> 20} MiB")
    return content


def open_regular(file: Path) -> BinaryIO:
    """Open a file for reading without waiting for the other end of a pipe.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is no regular file.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("is no regular file")
    return os.fdopen(descriptor, "rb")


def parse_json(raw: bytes, *, finite: bool) -> Any:
    """Parse JSON of bounded depth and numbers.

    Raises:
        ValueError: what is wrong with it, to stand behind the file's name.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is no UTF-8 text: byte {error.start + 1}") from None
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
    """Write a tree as JSON, with null where a number is not finite; ``options`` as json's."""
    return json.dumps(without_nan(tree)[0], allow_nan=False, **options)


def strict(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Put null where a number is not finite, and list the keys under ``not_finite``."""
    found, keys = without_nan(tree)
    return {**found, "not_finite": keys}


def without_nan(tree: Any) -> tuple[Any, list[str]]:
    """Put null where a number is not finite, which JSON cannot say; return the keys, too."""
    keys: list[str] = []

    def convert(node: Any, key: str) -> Any:
        if isinstance(node, Mapping):
            return {name: convert(value, f"{key}.{name}") for name, value in node.items()}
        if isinstance(node, list | tuple):
            return [convert(value, f"{key}.{place}") for place, value in enumerate(node)]
        if isinstance(node, float) and not math.isfinite(node):
            keys.append(key.removeprefix("."))
            return None
        return node

    return convert(tree, ""), keys


def _whole(digits: str) -> int:
    if len(digits) > MOST_BITS or (number := int(digits)).bit_length() > MOST_BITS:
        raise ValueError(f"has a number of {len(digits)} digits: {digits[:20]}...")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"has a number that is not finite: {text[:20]}")
    return number
