"""The command line as data: arguments are ``key=value``, ``-m`` sweeps over listed values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command.files.trusted_paths import group_names, option_names
from command.hydra_words import check_supported
from command.options import RAW_KEYS, READERS, SITE, Options, one_of
from command.words import ACTIONS, REPLACED
from components.config.suggestions import meaning_of, misspelt, nearest
from components.errors import RecipeError
from components.terminal import is_utf8

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

ROOT = Path(__file__).resolve().parents[1]
COMMAND_KEYS = ("action", *READERS)
WRITERS = ("new", "import")  # of recipes: to them words of groups are the user's files
OWN_FILES = ("data", "tokenizer")
AUTO = "auto"  # no file of conf/parallelism: the layout is searched for


@dataclass(frozen=True, kw_only=True)
class Arguments(Options):
    """One point: what to do, with which options, choices of groups and values of keys.

    ``choices`` and ``values`` are the user's own words. ``file_values`` are those of a file (a
    lock, a bundle, a study, a run's record): as final as the user's, weaker than these, and
    never trusted like them.
    ``site`` is the user's own side of a cluster (``site.account=...``): no part of the recipe.
    ``searches`` says that the layout is to be found (``parallelism=auto``).
    """

    words: tuple[str, ...]
    action: str = "auto"
    searches: bool = False
    choices: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    file_values: Mapping[str, Any] = field(default_factory=dict)
    site: dict[str, Any] = field(default_factory=dict)

    @property
    def all_values(self) -> dict[str, Any]:
        """What keys are set to: by the file, and over that by the user."""
        return {**self.file_values, **self.values}


def writes_recipe(words: Sequence[str]) -> bool:
    """Tell whether the words ask for a recipe: then those of ``OWN_FILES`` are taken as is."""
    return any(f"action={writer}" in words for writer in WRITERS)


def groups() -> dict[str, list[str]]:
    """Name the groups and the options of each, this repository's and the private ones."""
    return {group: option_names(group) for group in group_names()}


def parse_word(word: str) -> "Override":
    """Read one ``key=value`` by Hydra's grammar.

    Raises:
        RecipeError: it is none, or a feature of Hydra that is not supported.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser  # takes its time
    from hydra.errors import HydraException

    key = _check_form(word)
    check_supported(word)
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException as error:
        problem = str(error).strip().splitlines()[0]
        raise RecipeError(key, problem, "quote the value for the shell and for YAML") from None


def _check_form(word: str) -> str:
    """Return the key of ``key=value``; else say what was probably meant."""
    key, equals, text = word.partition("=")
    if not is_utf8(word):
        raise RecipeError(key, f"{word} is not UTF-8 text", "choose a name in UTF-8")
    if equals and not word.startswith("-"):
        return key
    raise RecipeError(word, "an argument is key=value", _as_argument(key.lstrip("-"), text))


def _as_argument(plain: str, text: str) -> str:
    """Say how a word is written that is no ``key=value``."""
    known = groups()
    keys = [*{*COMMAND_KEYS, *known}]
    meant = None if plain in keys else meaning_of(plain)
    stem = plain.removesuffix(".yaml")
    if meant is not None:
        because = f" ({meant.because})" if meant.because else ""
        return f"write {meant.here}={'...' if because else text or '...'}{because}"
    if plain in keys or ("." in plain and stem == plain):
        return f"write {plain}={text or '...'}"
    if stem != plain and stem not in known["recipe"]:
        return f"write recipe={plain}"
    if misspelt(plain, keys) is None:
        for key, names in (("recipe", known["recipe"]), ("action", ACTIONS)):
            if (found := misspelt(stem, names)) is not None:
                return f"write {key}={found}"
    return nearest(plain, keys)


def read_point(words: Sequence[str]) -> Arguments:
    """Sort one point's words into the options, the group choices and the values.

    Raises:
        RecipeError: an unknown action or group option, a wrong option, or a key given twice.
    """
    known = groups()
    given: dict[str, Any] = {}
    choices: dict[str, str] = {}
    values: dict[str, Any] = {}
    site: dict[str, Any] = {}
    writes = writes_recipe(words)
    for word in words:
        key, text = _check_form(word), word.partition("=")[2]
        kept = given if key in COMMAND_KEYS else choices if key in known else values
        kept = site if key.startswith(SITE) else kept
        if key in kept:
            raise RecipeError(key, "given twice", "keep one of them")
        raw = key in RAW_KEYS or (writes and kept is choices)
        value = text if raw else _text_keys(parse_word(word).value())
        chosen = kept is choices and not writes
        kept[key] = check_option(key, value, known[key]) if chosen else value
    if searches := choices.get("parallelism") == AUTO:
        del choices["parallelism"]
    action = given.pop("action", "auto")
    if action in REPLACED:
        raise RecipeError("action", f"{action!r} is no action now", f"write {REPLACED[action]}")
    action = one_of(*ACTIONS)("action", action)
    options = {key: READERS[key](key, value) for key, value in given.items()}
    if (days := options.get("within_days")) is not None and not searches:
        problem = f"{days:g}, but the number of nodes is only looked for with the layout"
        raise RecipeError("within_days", problem, "add parallelism=auto")
    return Arguments(
        words=tuple(words),
        action=action,
        searches=searches,
        choices=choices,
        values=values,
        site={key.removeprefix(SITE): value for key, value in site.items()},
        **options,
    )


def check_option(group: str, value: object, options: list[str], path: str = "") -> str:
    """Return the option of a group, if there is a file for it.

    Raises:
        RecipeError: it has none; with the nearest, and the ``path`` of a file that chooses.
    """
    if value not in options and not (group == "parallelism" and value == AUTO):
        problem = f"there is no {group} {value!r}"
        meant = meaning_of(f"{group}={value}")
        raise RecipeError(path or group, problem, str(meant or nearest(str(value), options)))
    return str(value)


def _text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _text_keys(item) for key, item in value.items()}
    return [_text_keys(item) for item in value] if isinstance(value, list) else value
