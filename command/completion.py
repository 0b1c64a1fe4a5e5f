"""Completion by Tab: a shell hands over the line so far, and gets how its last word may go on.

Half a command has no errors: where nothing can be told, nothing is offered. A word is offered
only if a shell takes it as it stands, for names of files may come from anybody.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from command.arguments import ROOT, groups, read_point
from command.composition.references import UNKNOWN, find_target
from command.options import OPTIONS, RAW_KEYS, choices_of, read_path
from command.words import ACTIONS, SWEEP, WAYS, is_own
from components.errors import RecipeError
from components.terminal import tell

PLAIN = re.compile(r"[A-Za-z0-9_./@%+=:,~-]+")
LAST = re.compile(r"\S*$")
STUDY = "study"
FLAGS = (SWEEP, "--cfg", "--help", "--version")
PATHS = frozenset({"runs", "calibrate"})  # beside the options that are one path
PATH = re.compile(r"^[.~]|/")  # of a recipe that is no name
LINE = "COMP_LINE"  # where a shell's script leaves the line, up to the cursor
# The equals sign ends a word of bash: of what is offered it wants what stands behind.
BASH = """\
declare -F _kochbuch >/dev/null || _kochbuch_before=$(complete -p python python3 2>/dev/null)
_kochbuch() {{
    local word kept=""
    COMPREPLY=()
    [[ ${{COMP_WORDS[1]}} -ef {entry} ]] || return 0
    compopt -o nospace
    word=${{COMP_LINE:0:COMP_POINT}}
    word=${{word##*[[:space:]]}}
    [[ $COMP_WORDBREAKS == *=* ]] && kept=${{word%"${{word##*=}}"}}
    while IFS= read -r word; do
        COMPREPLY+=("${{word#"$kept"}}")
    done < <(
        export {line}="${{COMP_LINE:0:COMP_POINT}}"
        {python} {entry} --shell-completion query=bash 2>/dev/null
    )
}}
complete -o bashdefault -o default -F _kochbuch python python3
"""
UNDONE = """\
complete -r python python3 2>/dev/null
unset -f _kochbuch
eval "$_kochbuch_before"
"""


def answer(asked: str) -> None:
    """Print a script for the shell (`install`, `uninstall`), or what may follow (`query`).

    Raises:
        RecipeError: something else is asked, or of another shell.
    """
    act, _, shell = asked.partition("=")
    if act not in {"install", "uninstall", "query"} or shell != "bash":
        way = 'write eval "$(python run.py --shell-completion install=bash)"'
        raise RecipeError("--shell-completion", f"{asked!r} is not known, only bash is", way)
    if act == "query":
        for word in completions(os.environ.get(LINE, "").partition("run.py")[2]):
            tell(word)
        return
    entry, python = (shlex.quote(str(one)) for one in (ROOT / "run.py", sys.executable))
    tell(UNDONE if act == "uninstall" else BASH.format(entry=entry, python=python, line=LINE))


def completions(line: str) -> list[str]:
    """List what the last word of a line may become; ``line`` is what stands behind run.py."""
    word = LAST.findall(line)[0]
    try:
        words = shlex.split(line.removesuffix(word))
    except ValueError:  # within a quotation
        return []
    given = dict(one.partition("=")[::2] for one in words)
    key, equals, text = word.partition("=")
    if equals:
        found: Iterable[str] = _with_key(key, text, words)
    elif word.startswith("-"):
        found = FLAGS
    else:
        found = [*_first_words(given), *_keys(word, words)]
    return sorted({one for one in found if one.startswith(word) and PLAIN.fullmatch(one)})


def _first_words(given: Mapping[str, str]) -> Iterator[str]:
    """Name the words that the action takes and that are not there yet."""
    action = given.get("action", "")
    ways = [way for way in WAYS if way.action == action] or WAYS
    known = ["action", *groups(), *(key for key in OPTIONS if not key.endswith("*"))]
    for key in known:
        taken = key == "action" or any(way.takes(key) for way in ways)
        if taken and key not in given and (key != STUDY or SWEEP in given):
            yield f"{key}="


def _with_key(key: str, text: str, words: Sequence[str]) -> Iterator[str]:
    before, comma, last = text.rpartition(",")
    if not (comma and SWEEP in words):
        before, comma, last = "", "", text
    return (f"{key}={before}{comma}{value}" for value in _values(key, last, words))


def _values(key: str, text: str, words: Sequence[str]) -> Iterator[str]:
    """List values of a key: names, files, or the value that it has."""
    known = groups()
    if key == "action":
        yield from ACTIONS
    elif key == STUDY:
        yield from (file.stem for file in (ROOT / "studies").glob("*.yaml"))
        yield from _files(text)
    elif key in {"recipe", "a", "b"}:
        yield from known["recipe"]
        yield from _files(text) if key != "recipe" or PATH.search(text) else ()
    elif key in known:
        yield from known[key]
    elif is_own(key):
        yield from choices_of(key)
        yield from _files(text) if key in RAW_KEYS | PATHS else ()
    else:
        yield from _choices(_found(key, words))


def _choices(value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield from ("false", "true")
    elif not isinstance(value, Mapping | list | None):
        yield str(value)


def _keys(word: str, words: Sequence[str]) -> Iterator[str]:
    """List the keys of the recipe so far, one level below what is written."""
    above, dot, _ = word.rpartition(".")
    here = _found(above, words)
    for key, value in here.items() if isinstance(here, Mapping) else ():
        ends = "." if isinstance(value, Mapping) and value else "="
        yield f"{above}{dot}{key}{ends}"


def _found(key: str, words: Sequence[str]) -> Any:
    """Compose what the words choose and set, and find a key; nothing where they are wrong."""
    from command.composition.compose import compose_recipe  # slow: Hydra
    from command.study.sweep_points import split_sweep  # slow: Hydra

    keys = [word for word in words if not word.startswith("-") and not _is_other(word)]
    try:
        first = split_sweep([SWEEP, *keys])[1][0]
        recipe = compose_recipe(read_point(first), anywhere=True)
    except RecipeError:
        return None
    tree = recipe.model_dump(mode="json")
    found = find_target(tree, key) if key else tree
    return None if found is UNKNOWN else found


def _is_other(word: str) -> bool:
    key = word.partition("=")[0]
    return key != "recipe" and (is_own(key) or key == "action")


def _files(text: str) -> Iterator[str]:
    """List files and folders that a path may become; a folder goes on."""
    above, slash, start = text.rpartition("/")
    try:
        inside = sorted(read_path("file", above + slash or ".").iterdir())
    except (OSError, ValueError):
        return
    for one in inside:
        if start or not one.name.startswith("."):
            yield f"{above}{slash}{one.name}" + ("/" if one.is_dir() else "")
