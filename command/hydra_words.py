"""Hydra's own words: what each becomes here, or the one message that names its equivalent.

`ROWS` is the one table: `docs/hydra.md` prints it, and a test runs every row. In a row words in
capitals stand for what the user writes there, as KEY and FILE.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal, NamedTuple

from command.words import SWEEP
from components.errors import RecipeError
from components.terminal import tell

# What a placeholder stands for; a key has none of the signs before it or of a package.
PLACEHOLDER = re.compile(r"(?<![A-Z])[A-Z]{3,}(?![A-Z])")
PARTS = {"KEY": r"[^=+~@]+", "GROUP": r"[^=+~@/]+", "PACKAGE": r"[^=]*"}
SIGNED = re.compile(r"[+~]+(hydra[./].*|[^=]+@.*)", re.S)
ELSE = r".*"
SHOWN = ("action=show", "full=true")
SHORT = {
    "-h": "--help",
    "-c": "--cfg",
    "-p": "--package",
    "-i": "--info",
    "-r": "--run",
    "-m": "--multirun",
    "-cd": "--config-dir",
    "-cp": "--config-path",
    "-cn": "--config-name",
    "-sc": "--shell-completion",
}


class HydraAnswer(NamedTuple):
    """What answers a word of Hydra instead of an action, and the value given with the word."""

    name: Literal["table", "completion"]
    value: str


@dataclass(frozen=True)
class HydraWord:
    """One of Hydra's words: the words that it becomes, what answers it, or why it is gone."""

    word: str
    becomes: tuple[str, ...] | None = None
    answer: Literal["table", "completion"] | None = None
    why: str = ""
    way: str = ""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What the word looks like with its placeholders filled in."""
        text = PLACEHOLDER.sub(
            lambda found: f"(?P<{found[0]}>{PARTS.get(found[0], ELSE)})", re.escape(self.word)
        )
        return re.compile(text, re.S)


def _filled(text: str, found: re.Match[str]) -> str:
    named = found.groupdict()
    return PLACEHOLDER.sub(lambda one: named.get(one[0]) or one[0], text)


def _gone(*words: str, why: str, way: str) -> list[HydraWord]:
    return [HydraWord(word, why=why, way=way) for word in words]


_COMPOSES = "Hydra composes the recipe here and does nothing else"
_OWN = "write recipe=FOLDER/NAME.yaml; options of groups lie in ~/.config/kochbuch/conf/GROUP/"
ROWS = (
    HydraWord("--help", ("--help",)),
    HydraWord("--hydra-help", answer="table"),
    HydraWord("--version", ("--version",)),
    HydraWord("--run", ()),
    HydraWord("--multirun", (SWEEP,)),
    HydraWord("--cfg job", SHOWN),
    HydraWord("--cfg WHAT", why=f"{_COMPOSES}, so it has no settings", way="write --cfg job"),
    HydraWord("--resolve", SHOWN),
    HydraWord(
        "--package PART",
        why="show prints the whole recipe",
        way="write action=show output=json; its key is .recipe.PART, for jq",
    ),
    HydraWord("--info config", SHOWN),
    HydraWord(
        "--info WHAT",
        why=f"{_COMPOSES}, so there are no plugins",
        way="write --cfg job; what a recipe is made of is named by `defaults` in its file",
    ),
    HydraWord(
        "--config-name NAME", why="conf/config.yaml is the one config", way="write recipe=NAME"
    ),
    HydraWord("--config-path FOLDER", why="conf/ is the one folder of groups", way=_OWN),
    HydraWord("--config-dir FOLDER", why="conf/ is the one folder of groups", way=_OWN),
    HydraWord(
        "--experimental-rerun FILE",
        why="nothing is pickled",
        way="write action=pack run=RUN file=again.recipe.yaml, then recipe=again.recipe.yaml",
    ),
    HydraWord("--shell-completion ASKED", answer="completion"),
    HydraWord("hydra.run.dir=FOLDER", why="it has another name", way="write run=FOLDER"),
    HydraWord(
        "hydra.sweep.dir=FOLDER",
        why="it has another name",
        way=f"write {SWEEP} run=FOLDER: a run folder for each point is made in it",
    ),
    HydraWord(
        "hydra.sweep.subdir=TEXT",
        why="the folder of a point is named after what the point changes",
        way="leave it out; run=FOLDER names the folder around it",
    ),
    HydraWord(
        "hydra.mode=MODE",
        why="it has another name",
        way=f"write {SWEEP} for a sweep, and nothing for one run",
    ),
    *_gone(
        "hydra/launcher=OPTION",
        "hydra.launcher.REST",
        why="where a run goes is told by its cluster",
        way="write cluster=NAME for a file of conf/cluster/; cluster.KEY and site.KEY are "
        "what a job asks for",
    ),
    *_gone(
        "hydra/sweeper=OPTION",
        "hydra.sweeper.REST",
        why="a sweep lists values, and a study searches",
        way=f"write {SWEEP} KEY=VALUE,VALUE, or {SWEEP} study=NAME (docs/studies.md)",
    ),
    HydraWord(
        "hydra.job.chdir=VALUE", why="the working folder never changes", way="leave it out"
    ),
    HydraWord(
        "hydra.job.name=NAME", why="a run is called like its folder", way="write run=runs/NAME"
    ),
    HydraWord(
        "hydra.job.env_set.VARIABLE=VALUE",
        why="ranks here have the environment of the shell",
        way="write VARIABLE=VALUE before python; for jobs "
        "'cluster.site.environment.VARIABLE={value: VALUE, reason: a try}'",
    ),
    HydraWord(
        "hydra.verbose=VALUE",
        why="there is one level of telling",
        way="leave it out; the run folder has all: journal.jsonl, metrics.jsonl, ranks/",
    ),
    *_gone(
        "hydra/LIBRARY_logging=OPTION",
        "hydra.LIBRARY_logging.REST",
        why="all logging goes to standard error",
        way="leave it out; 2>FILE keeps what is said",
    ),
    HydraWord(
        "hydra.output_subdir=NAME",
        why="Hydra writes nothing",
        way="leave it out; RUN/recipe.json and RUN/environment.json have what .hydra/ would",
    ),
    HydraWord("hydra.searchpath=PLACES", why="Hydra's own search path is fixed", way=_OWN),
    *_gone(
        "hydra/callbacks=OPTION",
        "hydra.callbacks.REST",
        why="a recipe is data and names no code of its own",
        way="leave it out; tracking=NAME tells other programs of a run (docs/reports.md)",
    ),
    *_gone(
        "hydra.REST",
        "hydra/REST",
        why="Hydra's own settings are not a recipe's",
        way="leave it out; --hydra-help lists what does its work",
    ),
    HydraWord("++KEY=VALUE", ("KEY=VALUE",)),
    HydraWord("+KEY=VALUE", ("KEY=VALUE",)),
    *_gone(
        "~KEY=VALUE",
        "~KEY",
        why="keys are not removed",
        way="set KEY to the value that switches it off, such as 0, false, none or []",
    ),
    HydraWord(
        "override /GROUP=OPTION",
        why="that is for the `defaults` of a recipe's file",
        way="write GROUP=OPTION",
    ),
    *_gone(
        "GROUP@PACKAGE=OPTION",
        "GROUP@PACKAGE",
        why="a group has one place",
        way="write GROUP=OPTION",
    ),
)
VALUED = frozenset(
    row.word.split()[0] for row in ROWS if row.word.startswith("--") and " " in row.word
)


def explained() -> Iterator[tuple[str, str, str]]:
    """Give the words that have one answer, what is done about them, and why."""
    long = {flag: short for short, flag in SHORT.items()}
    for (becomes, way, why), rows in groupby(ROWS, lambda row: (row.becomes, row.way, row.why)):
        words = [row.word for row in rows]
        words += [short for word in words if (short := long.get(word.split()[0]))]
        here = way or "works"
        if becomes is not None and becomes != (words[0],):
            here += f", as {' '.join(becomes)}" if becomes else ", and changes nothing"
        yield ", ".join(f"`{word}`" for word in words), here, why


def print_table() -> None:
    """Print what each word of Hydra does here."""
    for words, here, why in explained():
        tell(f"{words.replace('`', '')}\n    {here}" + (f" ({why})" if why else ""))


def plain_words(words: Sequence[str]) -> list[str] | HydraAnswer:
    """Replace words of Hydra by words of this command, or return what answers one of them.

    Raises:
        RecipeError: a word of Hydra's that is gone, with what does its work.
    """
    plain: list[str] = []
    joined = [*_with_values(words)]
    for word in joined:
        match _row_of(word):
            case None:
                plain.append(word)
            case row, found if row.answer is not None:
                return HydraAnswer(row.answer, next(iter(found.groupdict().values()), ""))
            case row, found if row.becomes is not None:
                own = (_filled(one, found) for one in row.becomes)
                plain += [one for one in own if one == word or one not in [*plain, *joined]]
            case row, found:
                raise _refusal(row, found)
    return plain


def refuse_hydra(word: str) -> None:
    """Refuse a word of Hydra's where only ``key=value`` stands, as in a file.

    Raises:
        RecipeError: it is one.
    """
    if (known := _row_of(word)) is not None:
        raise _refusal(*known)


def _refusal(row: HydraWord, found: re.Match[str]) -> RecipeError:
    name = row.word.split()[0] if row.word.startswith("--") else found[0].partition("=")[0]
    way = row.way or f"write {' '.join(row.becomes or ())}"
    return RecipeError(name, row.why or "only key=value stands here", _filled(way, found))


def _row_of(word: str) -> tuple[HydraWord, re.Match[str]] | None:
    if signed := SIGNED.fullmatch(word):
        word = signed[1]
    for row in ROWS:
        if found := row.pattern.fullmatch(word):
            return row, found
    return None


def _with_values(words: Sequence[str]) -> Iterator[str]:
    """Spell flags out, each with its value, which may be the word behind it."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = SHORT.get(name, name)
        if name not in VALUED:
            yield name + equals + value if name.startswith("--") else word
            continue
        if not equals and rest and _is_value(name, rest[0]):
            value = rest.pop(0)
        yield f"{name} {value}"


def _is_value(flag: str, word: str) -> bool:
    """Tell the value of a flag from the next argument."""
    return not word.startswith("-") and (flag == "--shell-completion" or "=" not in word)
