"""The command line as data: arguments are ``key=value``, ``-m`` sweeps over listed values."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from command.options import ACTIONS
from components.config.targets import nearest
from components.errors import RecipeError

ROOT = Path(__file__).resolve().parents[1]
OUTPUTS = ("text", "json")
FLAGS = ("again", "force", "cite")
COMMAND_KEYS = (
    *("action", "output", "run", "resume", "file", "a", "b", "runs", "layouts", "at_most"),
    *("within_days", "calibrate", "text", "tasks_folder", "to", *FLAGS),
)
SITE = "site."
AUTO = "auto"  # no file of conf/parallelism: the layout is searched for
PATH_KEYS = frozenset({"run", "resume", "file", "a", "b", "text", "tasks_folder"})
RAW_KEYS = PATH_KEYS | {"to"}  # taken as they stand: a URL is no YAML


@dataclass(frozen=True)
class Arguments:
    """One point: what to do, with which choices of groups and which values of keys.

    ``choices`` and ``values`` are the user's own words. ``file_values`` are those of a file (a
    lock, a bundle, a study, a run's record): as final as the user's, weaker than these, and
    never trusted like them.
    ``site`` is the user's own side of a cluster (``site.account=...``): no part of the recipe.
    ``searches`` says that the layout is to be found (``parallelism=auto``), ``within_days`` how
    long the run may take on nodes that are found as well.
    """

    words: tuple[str, ...]
    action: str = "auto"
    output: str = "text"
    folders: dict[str, Path] = field(default_factory=dict)
    runs: tuple[Path, ...] = ()
    calibrate: tuple[Path, ...] = ()
    layouts: tuple[dict[str, Any], ...] = ()
    at_most: int | None = None
    searches: bool = False
    within_days: float | None = None
    again: bool = False
    force: bool = False
    cite: bool = False
    to: str | None = None
    recipe: str | None = None
    choices: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    file_values: Mapping[str, Any] = field(default_factory=dict)
    site: dict[str, Any] = field(default_factory=dict)

    @property
    def all_values(self) -> dict[str, Any]:
        """What keys are set to: by the file, and over that by the user."""
        return {**self.file_values, **self.values}


def groups() -> dict[str, list[str]]:
    """Name the groups of ``conf/`` and the options of each."""
    folders = sorted(folder for folder in (ROOT / "conf").iterdir() if folder.is_dir())
    return {
        folder.name: sorted(f.stem for f in folder.glob("*.yaml") if "." not in f.stem)
        for folder in folders
    }


def parse_word(word: str) -> Override:
    """Read one ``key=value`` by Hydra's grammar.

    Raises:
        RecipeError: it is none, changes the tree's form, or is a setting of Hydra's own.
    """
    key = _check_form(word)
    if key[:1] in {"+", "~"}:
        plain = key.lstrip("+~")
        raise RecipeError(word, "keys are neither added nor removed", f"write {plain}=...")
    if key.partition(".")[0] == "hydra":
        raise RecipeError(key, "Hydra's own settings are not a recipe's", "leave it out")
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException as error:
        raise RecipeError(
            key, _first_line(error), "quote the value for the shell and for YAML"
        ) from None


def _check_form(word: str) -> str:
    """Return the key of ``key=value``; else say what was probably meant."""
    key, equals, text = word.partition("=")
    if equals and not word.startswith("-"):
        return key
    plain, known = key.lstrip("-"), groups()
    keys = [*COMMAND_KEYS, *known]
    if plain in keys or "." in plain:
        way = f"write {plain}={text or '...'}"
    elif plain in known["recipe"]:
        way = f"write recipe={plain}"
    elif plain in ACTIONS:
        way = f"write action={plain}"
    else:
        way = nearest(plain, keys)
    raise RecipeError(word, "an argument is key=value", way)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def read_point(words: Sequence[str]) -> Arguments:
    """Sort one point's words into the command, the group choices and the values.

    Raises:
        RecipeError: an unknown action, output or group option, or a key given twice.
    """
    known = groups()
    command: dict[str, Any] = {}
    choices: dict[str, str] = {}
    values: dict[str, Any] = {}
    site: dict[str, Any] = {}
    for word in words:
        key, text = _check_form(word), word.partition("=")[2]
        kept = command if key in COMMAND_KEYS or key == "recipe" else values
        kept = choices if key in known and key != "recipe" else kept
        kept = site if key.startswith(SITE) else kept
        if key in kept:
            raise RecipeError(key, "given twice", "keep one of them")
        raw = key in RAW_KEYS or key == "recipe"
        value: Any = text if raw else parse_word(word).value()
        if key in choices or kept is choices:
            value = check_option(key, value, known[key])
        kept[key] = value
    searches = choices.get("parallelism") == AUTO
    if searches:
        del choices["parallelism"]
    _check_choice("action", command.get("action", "auto"), ACTIONS)
    _check_choice("output", command.get("output", "text"), OUTPUTS)
    return Arguments(
        words=tuple(words),
        action=command.get("action", "auto"),
        output=command.get("output", "text"),
        folders={key: _path(key, command[key]) for key in PATH_KEYS & command.keys()},
        runs=tuple(_path("runs", item) for item in _list(command.get("runs", []))),
        calibrate=tuple(_path("calibrate", i) for i in _list(command.get("calibrate", []))),
        layouts=_layouts(command.get("layouts", [])),
        at_most=_at_most(command.get("at_most")),
        searches=searches,
        within_days=_within_days(command.get("within_days"), searches=searches),
        again=_flag("again", command.get("again", False)),
        force=_flag("force", command.get("force", False)),
        cite=_flag("cite", command.get("cite", False)),
        to=command.get("to"),
        recipe=command.get("recipe"),
        choices=choices,
        values={key: _plain(value) for key, value in values.items()},
        site={key.removeprefix(SITE): _plain(value) for key, value in site.items()},
    )


def _at_most(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    problem = f"{value!r} is no number of runs that may be queued at a time"
    raise RecipeError("at_most", problem, "write at_most=4")


def _within_days(value: object, *, searches: bool) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        remedy = "write within_days=30"
        raise RecipeError("within_days", f"{value!r} is no positive number of days", remedy)
    if not searches:
        problem = f"{value:g}, but the number of nodes is only looked for with the layout"
        raise RecipeError("within_days", problem, "add parallelism=auto")
    return float(value)


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise RecipeError(key, f"{value!r} is neither true nor false", f"write {key}=true")
    return value


def check_option(group: str, value: object, options: list[str]) -> str:
    """Return the option of a group, if ``conf/`` has a file for it.

    Raises:
        RecipeError: it has none; with the nearest.
    """
    if group == "parallelism" and value == AUTO:
        return AUTO
    if value not in options:
        raise RecipeError(group, f"there is no {group} {value!r}", nearest(str(value), options))
    return str(value)


def _check_choice(key: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise RecipeError(key, f"{value!r} is not known", nearest(str(value), list(known)))


def _path(key: str, text: object) -> Path:
    if not str(text):
        raise RecipeError(key, "no path is given", f"write {key}=FOLDER")
    if "\0" in str(text):
        raise RecipeError(key, f"{text!r} has a character that no path has", "name another")
    return Path(os.path.expanduser(str(text)))  # noqa: PTH111 (an unknown ~user stays as it is)


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else [value]


def _layouts(value: object) -> tuple[dict[str, Any], ...]:
    """Read a list of mappings of ``parallelism.*`` keys; one mapping alone will do."""
    layouts = [_plain(item) for item in _list(value)]
    for layout in layouts:
        if not isinstance(layout, dict):
            remedy = "write layouts=[{data: 2, tensor: 2}, {pipeline: 3}]"
            raise RecipeError("layouts", f"{layout!r} is no mapping of degrees", remedy)
    return tuple(layouts)


def _plain(value: Any) -> Any:
    """Turn Hydra's quoted strings and nested values into plain ones."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return getattr(value, "text", value)
