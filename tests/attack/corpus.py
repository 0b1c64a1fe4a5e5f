"""The attacks as data: each is a line of ``cases/KIND.yaml``, by name.

``do`` changes the files, each action of ``by`` reads them in a case of its own, ``status``
is 2 unless given, ``says`` is a piece of the message.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.attack.driver import Case

HERE = Path(__file__).resolve().parent
RECIPES = HERE / "recipes"
READ_BY = {
    "show": "action=show",
    "plan": "action=plan scale=full cluster=jean_zay",
    "lock": "action=pack file=out.lock.yaml",
    "pack": "action=pack file=out.recipe.yaml",
    "prepare": "action=prepare",
    "render": "action=render cluster=juwels",
}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One case of the corpus with its allowed exit statuses and expected messages."""

    case: Case
    status: tuple[int, ...]
    says: tuple[str, ...]


@cache
def corpus() -> tuple[Expected, ...]:
    """Read all cases; their names tell them apart."""
    found = [*_by_recipe(), *(one for file in _files() for one in _of_file(file))]
    names = [one.case.name for one in found]
    assert len(names) == len(set(names)), sorted({n for n in names if names.count(n) > 1})
    return tuple(found)


def _files() -> list[Path]:
    return sorted((HERE / "cases").glob("*.yaml"))


def _by_recipe() -> Iterator[Expected]:
    """A recipe that is refused is refused by line, whatever reads it: two actions each."""
    actions = list(READ_BY.items())
    for place, one in enumerate(json.loads((RECIPES / "index.json").read_text("utf-8"))):
        name = f"{one['name']}.yaml"
        content = (RECIPES / name).read_bytes().decode("latin-1")
        for action, words in (actions[place % 6], actions[(place + 1 + place // 6 % 5) % 6]):
            case = Case(
                name=f"recipe-{one['name']}-{action}",
                kind="recipe",
                words=[f"recipe=./{name}", *words.split()],
                changes=[{"in": name, "bytes": content}],
            )
            says = (f"{name}:{one['line']}", one["message"])
            yield Expected(case=case, status=(2,), says=says)


def _of_file(file: Path) -> Iterator[Expected]:
    tree: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))
    actions: Mapping[str, Any] = tree["actions"]
    kinds: Mapping[str, str] = tree.get("kinds", {})
    yield from _swapped(tree.get("fields", {}), actions)
    for attack, told in tree["attacks"].items():
        for action in told.get("by", " ".join(actions)).split():
            words = [*_words(actions[action]), *told.get("words", [])]
            yield Expected(
                case=Case(
                    name=f"{file.stem}-{attack}-{action}",
                    kind=told.get("kind") or kinds.get(action) or tree["kind"],
                    words=words,
                    changes=_listed(told.get("do", [])),
                    env=told.get("env", {}),
                    limits=told.get("limits", {}),
                ),
                status=tuple(_listed(told.get("status", 2))),
                says=tuple(_listed(told.get("says", []))),
            )


def _swapped(fields: Mapping[str, str], actions: Mapping[str, Any]) -> Iterator[Expected]:
    """Give each field of each JSON file another type, read by one action after another."""
    listed = [(file, key) for file, keys in fields.items() for key in keys.split()]
    for place, (file, key) in enumerate(listed):
        action = list(actions)[place % len(actions)]
        name = Path(file).name
        case = Case(
            name=f"swap-{name}-{key.replace('/', '.')}-{action}",
            kind=Path(file).parts[0],
            words=[
                word.replace("run=run", f"run={Path(file).parts[0]}")
                for word in _words(actions[action])
            ],
            changes=[{"in": file, "swap": key}],
        )
        yield Expected(case=case, status=(0, 1, 2), says=())


def _words(text: str | list[str]) -> list[str]:
    return text.split() if isinstance(text, str) else list(text)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
