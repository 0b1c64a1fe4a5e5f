"""Where a file that somebody sent may point to: below the working folder, nowhere else.

What a user names on the command line may lie anywhere.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from components.errors import RecipeError
from components.spec.named import Named

NOWHERE = frozenset({"none", ""})


def check_places(tree: Mapping[str, Any], named: Named) -> None:
    """Check every place that the sections ``data`` and ``model`` name and the user does not.

    Raises:
        RecipeError: an absolute or climbing path, or one that a link leads out.
    """
    for path, text in _places(tree):
        key = path.partition("[")[0]
        if isinstance(text, str) and text not in NOWHERE and not named.covers(key):
            refuse_outside(text, path)


def refuse_outside(text: str, path: str) -> None:
    """Refuse a place that is not below the working folder once links are followed."""
    key = path.partition("[")[0]
    remedy = f"if you trust it, name it yourself: {key}=..."
    place = Path(text)
    if place.is_absolute() or text.startswith("~") or ".." in place.parts:
        raise RecipeError(path, f"{text!r} leads out of the working folder", remedy)
    here = Path.cwd()
    try:
        found = [here / place, *here.glob(text)]
    except (ValueError, NotImplementedError) as error:  # no pattern at all
        raise RecipeError(path, f"{text!r} is no path: {error}", remedy) from None
    for one in found:
        if not one.resolve().is_relative_to(here.resolve()):
            problem = f"{text!r} leads out of the working folder by a link"
            raise RecipeError(path, problem, remedy)


def _places(tree: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    data, model = _mapping(tree.get("data")), _mapping(tree.get("model"))
    for key in ("folder", "tokenizer_folder"):
        yield f"data.{key}", data.get(key)
    yield "model.init_from", model.get("init_from")
    for name, source in _mapping(data.get("sources")).items():
        where, source = f"data.sources.{name}", _mapping(source)
        for key in ("files", "tokens"):
            listed = source.get(key)
            for index, item in enumerate(listed if isinstance(listed, list) else [listed]):
                yield f"{where}.{key}[{index}]", item
        yield f"{where}.dataset.path", _mapping(source.get("dataset")).get("path")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
