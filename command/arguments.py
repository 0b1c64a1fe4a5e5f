"""Parse the command line: arguments are ``key=value``, and ``-m`` sweeps over listed values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command.files.trusted_paths import group_names, option_names
from command.hydra_words import check_supported
from command.options import RAW_KEYS, SITE, TYPES, Options, read_option
from command.words import ACTIONS
from components.config.suggestions import find_misspelled, meaning_of, suggest_similar
from components.errors import RecipeError
from components.terminal import is_utf8

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

ROOT = Path(__file__).resolve().parents[1]
COMMAND_KEYS = ("action", *TYPES)
OWN_FILES = ("data", "tokenizer")
AUTO = "auto"  # not a file of conf/parallelism: search for the layout


@dataclass(frozen=True, kw_only=True)
class Arguments(Options):
    """One point: its action, options, group choices and key values.

    ``choices`` and ``values`` are the user's own words. ``file_values`` come from a file (lock,
    bundle, study or run record): as final as the user's values, overridden by these, and never
    trusted like these. ``site`` contains the user's settings for a cluster
    (``site.account=...``), which are not part of the recipe. ``searches`` is true for
    ``parallelism=auto``.
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
        """The values of all keys. The user's override the file's."""
        return {**self.file_values, **self.values}


def writes_recipe(words: Sequence[str]) -> bool:
    """Return whether the action is ``new``, which takes ``OWN_FILES`` as plain text."""
    return "action=new" in words


def list_config_groups() -> dict[str, list[str]]:
    """Map each group to its options, from this repository and the private folder."""
    return {group: option_names(group) for group in group_names()}


def parse_word(word: str) -> "Override":
    """Parse one ``key=value`` with Hydra's grammar; refuse its unsupported features."""
    from hydra.core.override_parser.overrides_parser import OverridesParser  # slow import
    from hydra.errors import HydraException

    key = _check_form(word)
    check_supported(word)
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException as error:
        problem = str(error).strip().splitlines()[0]
        raise RecipeError(key, problem, "quote the value for the shell and for YAML") from None


def _check_form(word: str) -> str:
    """Return the key of ``key=value``, or raise an error that suggests the intended form."""
    key, equals, text = word.partition("=")
    if not is_utf8(word):
        raise RecipeError(key, f"{word} is not UTF-8 text", "use a name in UTF-8")
    if equals and not word.startswith("-"):
        return key
    raise RecipeError(word, "expected key=value", _as_argument(key.lstrip("-"), text))


def _as_argument(plain: str, text: str) -> str:
    """Suggest the ``key=value`` form of a word that has none."""
    known = list_config_groups()
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
    if find_misspelled(plain, keys) is None:
        for key, names in (("recipe", known["recipe"]), ("action", ACTIONS)):
            if (name := find_misspelled(stem, names)) is not None:
                return f"write {key}={name}"
    return suggest_similar(plain, keys)


def read_point(words: Sequence[str]) -> Arguments:
    """Parse one point's words into options, group choices and values."""
    groups = group_names()
    option_values: dict[str, Any] = {}
    choices: dict[str, str] = {}
    values: dict[str, Any] = {}
    site: dict[str, Any] = {}
    writes = writes_recipe(words)
    for word in words:
        key, text = _check_form(word), word.partition("=")[2]
        target = option_values if key in COMMAND_KEYS else choices if key in groups else values
        target = site if key.startswith(SITE) else target
        if key in target:
            raise RecipeError(key, "given twice", "keep one of them")
        raw = key in RAW_KEYS or (writes and target is choices)
        value = text if raw else _text_keys(parse_word(word).value())
        chosen = target is choices and not writes
        target[key] = check_option(key, value, option_names(key)) if chosen else value
    if searches := choices.get("parallelism") == AUTO:
        del choices["parallelism"]
    action = option_values.pop("action", "auto")
    if action not in {*ACTIONS, "auto"}:  # earlier versions recorded "auto"
        raise RecipeError(
            "action", f"unknown action: {action!r}", suggest_similar(str(action), ACTIONS)
        )
    options: dict[str, Any] = {
        key: read_option(key, value) for key, value in option_values.items()
    }
    if (days := options.get("within_days")) is not None and not searches:
        problem = f"{days:g} requires parallelism=auto, which finds the number of nodes"
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
    """Return the option of a group if its file exists.

    An error names the nearest option, and the ``path`` in the file that made the choice.
    """
    if value not in options and not (group == "parallelism" and value == AUTO):
        problem = f"unknown {group}: {value!r}"
        meant = meaning_of(f"{group}={value}")
        raise RecipeError(
            path or group, problem, str(meant or suggest_similar(str(value), options))
        )
    return str(value)


def _text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _text_keys(item) for key, item in value.items()}
    return [_text_keys(item) for item in value] if isinstance(value, list) else value
