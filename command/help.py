"""What is said of the command itself: its usage, one action, the recipes, the versions.

What an action does, an example and its pages are read from its section of ``docs/actions.md``;
its words from the tables that refuse all others, `command.words` and `command.options`.
"""

import platform
import re
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from command.arguments import ROOT
from command.files.trusted_paths import RECIPE, option_names
from command.options import OPTIONS
from command.outcome import PACKAGES, version_of
from command.recipe.recipe_chain import read_named
from command.words import ACTIONS, ANY, WAYS
from components.config.suggestions import nearest
from components.errors import RecipeError
from components.run.provenance import git
from components.versions import PYTHON, TORCH

ASKED = frozenset({"-h", "--help", "help", "action=help"})
PAGE = ROOT / "docs" / "actions.md"
SECTION = r"^### `{}`\n\n(.*?)\n\n```\n(.*?)\n```"
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]*)\)")
LINKS_AT_THE_END = re.compile(rf"(?:\s*{LINK.pattern}[,.]?)+$")
WIDTH = 96
LIST = "action=show"  # without a recipe it lists all of them
SHOWN = re.compile(r"^## (.+)$|^### `(\w+)`\n\n(.+?[.:])(?:\s|$)", re.M)
FIRST = re.compile(r"^```\n(.*?)\n```$", re.M | re.S)  # what to type first


def answer(words: Sequence[str]) -> str | None:
    """Return what is asked of the command itself; nothing where an action is asked for.

    Raises:
        RecipeError: help is asked for an action that does not exist.
    """
    if "--version" in words:
        return "\n".join(_versions())
    if list(words) == [LIST]:
        return _list_recipes()
    pairs = [word.partition("=") for word in words]
    explained = [key for key, _, value in pairs if value == "help" and key in ACTIONS]
    explained += [value for key, _, value in pairs if key == "help" and value]
    if words and not explained and ASKED.isdisjoint(words):
        return None
    named = [value or key for key, _, value in pairs if key == "action" or key in ACTIONS]
    if action := next((one for one in [*explained, *named] if one != "help"), None):
        return explain(action)
    return _usage()


def explain(action: str) -> str:
    """Say what an action does, with its words, an example and the pages to read.

    Raises:
        RecipeError: there is no such action.
    """
    if action not in ACTIONS:
        raise RecipeError("help", f"there is no action {action!r}", nearest(action, ACTIONS))
    text, example, pages = _section(action)
    lines = [f"{action}: {text}", *_words_of(action)]
    lines += [f"  {line}" for line in example.splitlines()]
    return "\n".join([*textwrap.wrap(lines[0], WIDTH), "", *lines[1:], "", *pages])


def _section(action: str) -> tuple[str, str, list[str]]:
    """Read what the page says of an action, its example, and where to read on."""
    found = re.search(SECTION.format(action), PAGE.read_text("utf-8"), re.M | re.S)
    assert found is not None, f"{PAGE} has no section of {action}"
    links = dict.fromkeys(f"docs/{place}" for _, place in LINK.findall(found[1]))
    text = LINK.sub(r"\1", LINKS_AT_THE_END.sub("", found[1])).replace("`", "")
    return " ".join(text.split()), found[2], [f"docs/actions.md#{action}", *links]


def _words_of(action: str) -> Iterator[str]:
    """List the words that an action takes, each explained."""
    ways = [way for way in WAYS if way.action == action]
    for name in dict.fromkeys(name for way in ways for name in way.options.split()):
        taking = [way for way in ways if way.takes(name)]
        alone = any(way.given.removeprefix("-m ") in {"", name} for way in taking)
        beside = "" if alone else f" ({taking[0].beside.strip()})"
        yield _explained(name, f"{OPTIONS[name]}{beside}")
    keys = dict.fromkeys(key for way in ways for key in way.keys.split())
    if ANY in keys:
        yield _explained("KEY", "any key and group of a recipe: optimizer.lr=3e-4 scale=full")
    elif keys:
        yield f"  keys of a recipe: {', '.join(keys)}"
    yield ""


def _explained(name: str, said: str) -> str:
    return f"  {name + '=':<14}{said}"


def _usage() -> str:
    """Say what to type first, and what each action does, in one screen."""
    page = PAGE.read_text("utf-8")
    lines = FIRST.findall(page)[:1]
    for group, action, sentence in SHOWN.findall(page):
        lines.append(f"  {action:<10} {sentence}" if action else f"{group}:")
    return "\n".join(lines)


def _list_recipes() -> str:
    """List the recipes, each with its home cluster and its reason."""
    return "\n".join(f"{name:<16} {_line_of(name)}" for name in option_names(RECIPE))


def _line_of(name: str) -> str:
    """Return a recipe's home and reason; one that is wrong keeps nobody from the others."""
    try:
        tree = read_named(name).merged
    except RecipeError as error:
        return f"cannot be read: {error.path}: {error.problem}"
    return f"{tree.get('home', '?')!s:<14} {tree.get('why', '?')}"


def _versions() -> Iterator[str]:
    """Name what this is, what it runs on, and what was tried."""
    project = tomllib.loads(Path(ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    commit = git("describe", "--always", "--dirty").strip()
    yield f"{project['name']} {project['version']}{commit and f' (commit {commit})'}"
    yield f"python {platform.python_version()}"
    yield from (f"{package} {version_of(package)}" for package in PACKAGES)
    yield f"tried with {PYTHON} and {TORCH}: docs/versions.md"
