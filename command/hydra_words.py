"""Hydra's flags and override signs: translate the supported ones, refuse all others."""

import re
from collections.abc import Iterator, Sequence

from command.words import SWEEP
from components.errors import RecipeError

SHOWN = ("action=show", "full=true")
COMPLETION = "--shell-completion"
SHORT = {"-h": "--help", "-c": "--cfg", "-r": "--run", "-m": "--multirun", "-sc": COMPLETION}
BECOMES = {"--run": (), "--multirun": (SWEEP,), "--cfg job": SHOWN, "--resolve": SHOWN}
# Other flags, deleted keys, Hydra's own settings, and overrides of an option's package.
UNSUPPORTED = re.compile(
    r"--(?:cfg|package|info|config-name|config-path|config-dir|experimental-rerun|hydra-help)\b.*"
    r"|-(?:p|i|cn|cp|cd)(?:=.*)?|~(?!(?:callbacks|logger)\.\w+$).*"
    r"|[+~]*hydra[./].*|[^=]+@.*|override /.*",
    re.S,
)
ADDED = re.compile(r"\A\+{1,2}(?=[^+])")
REMOVED = re.compile(r"\A~([\w.]+)")
REASON = "not supported: Hydra only composes the recipe here"
PAGE = "see docs/hydra.md for supported features and replacements"


def plain_words(words: Sequence[str]) -> list[str]:
    """Replace Hydra's flags, ``+key=value`` and ``~key`` with words of this command."""
    plain: list[str] = []
    joined = [*_with_values(words)]
    for word in joined:
        check_supported(word)
        own = BECOMES.get(word, (REMOVED.sub(r"\1=null", ADDED.sub("", word)),))
        plain += [
            own_word
            for own_word in own
            if own_word == word or own_word not in [*plain, *joined]
        ]
    return plain


def check_supported(word: str) -> None:
    """Refuse a feature of Hydra that does not work here."""
    if word not in BECOMES and UNSUPPORTED.fullmatch(word):
        raise RecipeError(re.split("[= ]", word)[0], REASON, PAGE)


def completion_query(words: Sequence[str]) -> str | None:
    """Return the value of ``--shell-completion``, if present."""
    for word in _with_values(words):
        flag, _, query = word.partition(" ")
        if flag == COMPLETION:
            return query
    return None


def _with_values(words: Sequence[str]) -> Iterator[str]:
    """Spell flags out, and join ``--cfg`` and ``--shell-completion`` with their values."""
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        name = SHORT.get(name, name)
        if name not in {"--cfg", COMPLETION}:
            yield name + equals + value
            continue
        if not equals and rest and (name == COMPLETION or "=" not in rest[0]):
            value = rest.pop(0)
        yield f"{name} {value}"
