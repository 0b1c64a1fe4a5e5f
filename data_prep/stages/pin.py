"""Word lists as part of a plan: their content decides, and tasks run in other folders."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.data.files import record_file

LISTS = ("stop_words", "flagged_words")


def pin_lists(steps: Mapping[str, Any]) -> dict[str, Any]:
    """Give ``steps`` with absolute paths of the lists, and beside it the lists' hashes."""
    pinned = copy.deepcopy(dict(steps))
    hashes = {}
    filters = pinned["filters"]
    ratios: Any = filters["text_ratios"] if isinstance(filters, dict) else "none"
    for name in LISTS if isinstance(ratios, dict) else ():
        path = Path(ratios[name])
        if path.is_file():  # what is missing is refused by the step itself
            ratios[name] = str(path.absolute())
            hashes[name] = record_file(path).sha256
    return {"steps": pinned, "lists": hashes}
