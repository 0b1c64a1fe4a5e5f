"""Hydra's flags and override signs: those that work here, and one answer to all others."""

import re
from collections.abc import Iterator, Sequence

from command.words import SWEEP
from components.errors import RecipeError

SHOWN = ("action=show", "full=true")
COMPLETION = "--shell-completion"
SHORT = {"-h": "--help", "-c": "--cfg", "-r": "--run", "-m": "--multirun", "-sc": COMPLETION}
BECOMES = {"--run": (), "--multirun": (SWEEP,), "--cfg job": SHOWN, "--resolve": SHOWN}
# Other flags, removed keys, Hydra's own settings, and options that change their package.
UNSUPPORTED = re.compile(
    r"--(?:cfg|package|info|config-name|config-path|config-dir|experimental-rerun|hydra-help)\b.*"
    r"|-(?:p|i|cn|cp|cd)(?:=.*)?|~(?!(?:callbacks|logger)\.\w+$).*"
    r"|[+~]*hydra[./].*|[^=]+@.*|override /.*",
    re.S,
)
ADDED = re.compile(r"\A\+{1,2}(?=[^+])")
REMOVED = re.compile(r"\A~([\w.]+)")
REASON = "Hydra composes the recipe here and does nothing else"
PAGE = "docs/hydra.md lists what works, and what does the rest's work"


def plain_words(words: Sequence[str]) -> list[str]:
    """Replace Hydra's flags and ``+key=value`` and ``~key`` by words of this command.

    Raises:
        RecipeError: a feature of Hydra that is not supported.
    """
    plain: list[str] = []
    joined = [*_with_values(words)]
    for word in joined:
        check_supported(word)
        own = BECOMES.get(word, (REMOVED.sub(r"\1=null", ADDED.sub("", word)),))
        plain += [one for one in own if one == word or one not in [*plain, *joined]]
    return plain


def check_supported(word: str) -> None:
    """Refuse a feature of Hydra that does not work here.

    Raises:
        RecipeError: it is one.
    """
    if word not in BECOMES and UNSUPPORTED.fullmatch(word):
        raise RecipeError(re.split("[= ]", word)[0], REASON, PAGE)


def completion_query(words: Sequence[str]) -> str | None:
    """Return what a shell asks by ``--shell-completion``, if it asks."""
    for word in _with_values(words):
        flag, _, query = word.partition(" ")
        if flag == COMPLETION:
            return query
    return None


def _with_values(words: Sequence[str]) -> Iterator[str]:
    """Spell flags out; what ``--cfg`` and ``--shell-completion`` ask for may follow."""
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
