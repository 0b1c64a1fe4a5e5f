"""Where a file that somebody sent may point to: below the working folder, nowhere else.

What a user names on the command line may lie anywhere.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from components.errors import RecipeError
from components.spec.named import Named

PATTERN = re.compile(r"[*?\[]")
NOWHERE = frozenset({"none", ""})


def check_places(tree: Mapping[str, Any], named: Named) -> None:
    """Check every place that a recipe's sections name and the user does not.

    Raises:
        RecipeError: an absolute or climbing path, or one that a link leads out.
    """
    for path, text in _unnamed(tree, named):
        refuse_outside(text, path)


def places_outside(tree: Mapping[str, Any], named: Named) -> dict[str, str]:
    """Return the places that lead out of the working folder and that the user does not name."""
    return {path: text for path, text in _unnamed(tree, named) if _leads_out(text)}


def refuse_outside(text: str, path: str) -> None:
    """Refuse a place that is not below the working folder once links are followed.

    Raises:
        RecipeError: it is not, or is no path.
    """
    if (how := _leads_out(text)) is not None:
        key = path.partition("[")[0]
        remedy = f"if you trust it, name it yourself: {key}=..."
        raise RecipeError(path, f"{text!r} {how}", remedy)


def _leads_out(text: str) -> str | None:
    """Say how a place leaves the working folder; nothing where it stays inside."""
    place = Path(text)
    if place.is_absolute() or text.startswith("~") or ".." in place.parts:
        return "leads out of the working folder"
    here = Path.cwd()
    plain = takewhile(lambda part: not PATTERN.search(part), place.parts)
    try:
        # What stands before a pattern first: a folder outside is not even listed.
        inside = _is_below(here.joinpath(*plain), here) and all(
            _is_below(one, here) for one in (here / place, *here.glob(text))
        )
    except (ValueError, NotImplementedError, OSError, RuntimeError) as error:
        return f"is no path: {error}"
    return None if inside else "leads out of the working folder by a link"


def _is_below(place: Path, folder: Path) -> bool:
    return place.resolve().is_relative_to(folder.resolve())


def _unnamed(tree: Mapping[str, Any], named: Named) -> Iterator[tuple[str, str]]:
    for path, text in _places(tree):
        key = path.partition("[")[0]
        if isinstance(text, str) and text not in NOWHERE and not named.covers(key):
            yield path, text


def _places(tree: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    data, model = _mapping(tree.get("data")), _mapping(tree.get("model"))
    for key in ("folder", "tokenizer_folder"):
        yield f"data.{key}", data.get(key)
    yield "model.init_from", model.get("init_from")
    yield "checkpoint.copy_to", _mapping(tree.get("checkpoint")).get("copy_to")
    for name, source in _mapping(data.get("sources")).items():
        where, source = f"data.sources.{name}", _mapping(source)
        for key in ("files", "tokens"):
            listed = source.get(key)
            for index, item in enumerate(listed if isinstance(listed, list) else [listed]):
                yield f"{where}.{key}[{index}]", item
        yield f"{where}.dataset.path", _mapping(source.get("dataset")).get("path")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
