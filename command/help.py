"""Help of the command: usage, one action, the list of recipes, the versions.

An action's text comes from its section of ``docs/actions.md``, its words from the tables that
also check them (`command.words`, `command.options`).
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
from command.words import ACTION_FORMS, ACTIONS, ANY
from components.config.suggestions import suggest_similar
from components.errors import RecipeError
from components.run.provenance import run_git
from components.versions import PYTHON, TORCH

HELP_WORDS = frozenset({"-h", "--help", "help", "action=help"})
PAGE = ROOT / "docs" / "actions.md"
SECTION = r"^### `{}`\n\n(.*?)\n\n```\n(.*?)\n```"
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]*)\)")
LINKS_AT_THE_END = re.compile(rf"(?:\s*{LINK.pattern}[,.]?)+$")
WIDTH = 96
LIST = "action=show"  # without a recipe this lists all recipes
SHOWN = re.compile(r"^## (.+)$|^### `(\w+)`\n\n(.+?[.:])(?:\s|$)", re.M)
FIRST = re.compile(r"^```\n(.*?)\n```$", re.M | re.S)  # the first command to type


def find_help(words: Sequence[str]) -> str | None:
    """Return the help text that the words request, or None if they request an action."""
    if "--version" in words:
        return "\n".join(_versions())
    if list(words) == [LIST]:
        return "\n".join(f"{name:<16} {_line_of(name)}" for name in option_names(RECIPE))
    pairs = [word.partition("=") for word in words]
    explained = [key for key, _, value in pairs if value == "help" and key in ACTIONS]
    explained += [value for key, _, value in pairs if key == "help" and value]
    if words and not explained and HELP_WORDS.isdisjoint(words):
        return None
    named = [value or key for key, _, value in pairs if key == "action" or key in ACTIONS]
    if action := next((name for name in [*explained, *named] if name != "help"), None):
        return describe_action(action)
    return _usage()


def describe_action(action: str) -> str:
    """Describe an action: its words, an example and the pages to read."""
    if action not in ACTIONS:
        raise RecipeError(
            "help", f"unknown action: {action!r}", suggest_similar(action, ACTIONS)
        )
    text, example, pages = _section(action)
    lines = [f"{action}: {text}", *_words_of(action)]
    lines += [f"  {line}" for line in example.splitlines()]
    return "\n".join([*textwrap.wrap(lines[0], WIDTH), "", *lines[1:], "", *pages])


def _section(action: str) -> tuple[str, str, list[str]]:
    """Read an action's description, example and links from its section of the page."""
    section = re.search(SECTION.format(action), PAGE.read_text("utf-8"), re.M | re.S)
    assert section is not None, f"{PAGE} has no section of {action}"
    links = dict.fromkeys(f"docs/{place}" for _, place in LINK.findall(section[1]))
    text = LINK.sub(r"\1", LINKS_AT_THE_END.sub("", section[1])).replace("`", "")
    return " ".join(text.split()), section[2], [f"docs/actions.md#{action}", *links]


def _words_of(action: str) -> Iterator[str]:
    """List the words that an action takes, each with its explanation."""
    forms = [form for form in ACTION_FORMS if form.action == action]
    for name in dict.fromkeys(name for form in forms for name in form.options.split()):
        taking = [form for form in forms if form.uses_key(name)]
        alone = any(form.given.removeprefix("-m ") in {"", name} for form in taking)
        sections = "" if alone else f" ({taking[0].condition_text.strip()})"
        yield _explained(name, f"{OPTIONS[name]}{sections}")
    keys = dict.fromkeys(key for form in forms for key in form.keys.split())
    if ANY in keys:
        yield _explained("KEY", "any recipe key or group: optimizer.lr=3e-4 scale=full")
    elif keys:
        yield f"  recipe keys: {', '.join(keys)}"
    yield ""


def _explained(name: str, text: str) -> str:
    return f"  {name + '=':<14}{text}"


def _usage() -> str:
    """Return the usage on one screen: the first command to type, and a line for each action."""
    page = PAGE.read_text("utf-8")
    lines = FIRST.findall(page)[:1]
    for group, action, sentence in SHOWN.findall(page):
        lines.append(f"  {action:<10} {sentence}" if action else f"{group}:")
    return "\n".join(lines)


def _line_of(name: str) -> str:
    """Return a recipe's cluster and description, or its error so that the list continues."""
    try:
        tree = read_named(name).merged_tree
    except RecipeError as error:
        return f"cannot be read: {error.path}: {error.problem}"
    return f"{tree.get('reference_cluster', '?')!s:<14} {tree.get('description', '?')}"


def _versions() -> Iterator[str]:
    """Yield the versions of this program, Python and packages, and the tested versions."""
    project = tomllib.loads(Path(ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    commit = run_git("describe", "--always", "--dirty").strip()
    yield f"{project['name']} {project['version']}{commit and f' (commit {commit})'}"
    yield f"python {platform.python_version()}"
    yield from (f"{package} {version_of(package)}" for package in PACKAGES)
    yield f"tested with {PYTHON} and {TORCH}: docs/versions.md"
