"""What newcomers type, and what is said of it: `mistakes.md` is run, its ways out are tried."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from command.arguments import COMMAND_KEYS, ROOT, Arguments, list_config_groups, read_point
from command.composition.compose import compose_recipe
from command.main import main
from command.words import check_words, keys_of
from components.errors import RecipeError
from tests.recipes.golden_files import AGAIN, is_update

PAGE = Path(__file__).with_name("mistakes.md")
COMMAND = re.compile(r"^\$ python run\.py (.*)\n((?:(?!```).+\n)*)", re.M)
FILE = re.compile(r"^```yaml (\S+)\n(.*?)^```$", re.M | re.S)
# Ways out as they are written: a whole word, the key that is meant, names alike, numbers near.
WORD = re.compile(r"'([a-z][\w.]*=[^']*)'|(?<![\w'.{])([a-z][\w.]*=[^\s,;()'?:]+)")
KEY = re.compile(r"use ([a-z][\w.]*(?: or [a-z][\w.]*)*)(?= \(|;|$)", re.M)
ALIKE = re.compile(r"did you mean ([\w./-]+(?: or [\w./-]+)*)\?")
NEAR = re.compile(r"nearest valid values?: ([\d_]+)")
PLACEHOLDER = re.compile(r"\.\.\.|\b[A-Z]{2,}\b")


@dataclass(frozen=True)
class Mistake:
    """A command, and what the page says that it prints."""

    command: str
    said: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)

    @property
    def path(self) -> str:
        """What the message is about: a key, or a word."""
        where = self.said.partition(": ")[0]
        return where.rpartition(":")[2].strip() if ".yaml:" in where else where

    @property
    def ways(self) -> str:
        """All below the first line."""
        return self.said.partition("\n")[2]


MISTAKES = [Mistake(*found) for found in COMMAND.findall(PAGE.read_text("utf-8"))]
each = pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.command)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILE.findall(PAGE.read_text("utf-8")):
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def _train_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """End what is no mistake, and would train for minutes, where its recipe is composed."""

    def stop(arguments: Arguments) -> None:
        compose_recipe(arguments)
        pytest.fail(f"it is accepted: {' '.join(arguments.words)}")

    monkeypatch.setattr("command.perform._choose", stop)


@each
@pytest.mark.usefixtures("_train_nothing")
def test_a_mistake_has_its_message(mistake, tmp_path, capfd):
    before = sorted(tmp_path.iterdir())
    status = main(mistake.words)
    printed = capfd.readouterr()
    said = printed.err.replace(str(ROOT), "CLONE").replace(str(tmp_path), "HERE")
    assert sorted(tmp_path.iterdir()) == before
    assert printed.out == ""
    assert status == 2
    if is_update():
        _write(mistake, said)
    else:
        assert said == mistake.said, AGAIN


def _write(mistake: Mistake, said: str) -> None:
    text = PAGE.read_text("utf-8")
    head = f"$ python run.py {mistake.command}\n"
    assert head + mistake.said in text
    PAGE.write_text(text.replace(head + mistake.said, head + said, 1), "utf-8")


def test_the_page_has_each_mistake_once_with_a_remedy() -> None:
    assert len(MISTAKES) >= 50
    assert len({mistake.command for mistake in MISTAKES}) == len(MISTAKES)
    assert len(MISTAKES) == PAGE.read_text("utf-8").count("\n$ ")
    assert [one.command for one in MISTAKES if "\n  " not in one.said] == []


@pytest.mark.long
@each
def test_a_remedy_is_accepted(mistake: Mistake) -> None:
    for words in _mended(mistake):
        try:
            arguments = read_point(words)
            if arguments.action != "auto":
                check_words(arguments.action, keys_of(words))
            if not arguments.searches:  # which takes its time
                compose_recipe(arguments)
        except RecipeError as error:  # of another word: the command has a second mistake
            if error.path in {mistake.path, words[-1], words[-1].partition("=")[0]}:
                raise
    for key in _keys(mistake):
        assert _is_known(key), key


def _mended(mistake: Mistake) -> Iterator[list[str]]:
    """Give the command again, once for each way out that says a whole word."""
    for quoted, plain in WORD.findall(mistake.ways):
        if not PLACEHOLDER.search(quoted or plain):
            yield _with(mistake, (quoted or plain).rstrip("."))
    for found in ALIKE.findall(mistake.ways):
        for name in found.split(" or "):
            yield _with(mistake, _respelt(mistake, name))
    for number in NEAR.findall(mistake.ways):
        yield _with(mistake, f"{mistake.path}={number}")


def _respelt(mistake: Mistake, name: str) -> str:
    """Put ``name`` for what was misspelt: the key of a word, a step of it, or its value."""
    word = _wrong(mistake)
    key, equals, value = word.partition("=")
    if "unknown key" in mistake.said:
        last = mistake.path.rpartition(".")[0]
        if "." in name or not last:
            rest = "" if "." in name else key[len(mistake.path) :]
            return f"{name}{rest}={value}"
        return f"{last}.{name}{key[len(mistake.path) :]}={value}"
    return f"{key}={name}" if equals else f"{name}={value}"


def _wrong(mistake: Mistake) -> str:
    """Find the word that the message is about; nothing if that stands in a file."""
    for word in mistake.words:
        key = word.partition("=")[0]
        if word == mistake.path or mistake.path == key or _below(mistake.path, key):
            return word
    return ""


def _below(path: str, key: str) -> bool:
    return path.startswith(f"{key}.") or key.startswith(f"{path}.")


def _with(mistake: Mistake, word: str) -> list[str]:
    """Put a word in the place of the wrong one, and of another of its key."""
    key, wrong = word.partition("=")[0], _wrong(mistake)
    kept = [one for one in mistake.words if one != wrong and one.partition("=")[0] != key]
    return [*(one for one in kept if one not in {"-m"}), word]


def _keys(mistake: Mistake) -> Iterator[str]:
    """List the keys that a way out names without a value for them."""
    for found in KEY.findall(mistake.ways):
        yield from found.split(" or ")
    for quoted, plain in WORD.findall(mistake.ways):
        if PLACEHOLDER.search(quoted or plain):
            yield (quoted or plain).partition("=")[0]


def _is_known(key: str) -> bool:
    if key in {*COMMAND_KEYS, *list_config_groups(), "study"} or key.startswith((
        "site.",
        "data.shares.",
    )):
        return True
    here: Any = _tree()
    for step in key.split("."):
        if not isinstance(here, Mapping) or not (step in here or step == "NAME"):
            return False
        here = next(iter(here.values())) if step == "NAME" else here[step]
    return True


@cache
def _tree() -> Mapping[str, Any]:
    return compose_recipe(read_point(["recipe=teuken7b"])).model_dump(mode="json")


@pytest.mark.parametrize("word", ["nothing=1", "model.nothing=1"])
def test_a_remedy_with_an_unknown_key_fails(word: str) -> None:
    """Plant wrong remedies: a whole word, and a key without its value."""
    key = word.removesuffix("=1")
    wrong_word = Mistake(f"recipe=teuken7b {word}", f"{key}: unknown key\n  write {word}\n")
    with pytest.raises(RecipeError, match="unknown key"):
        test_a_remedy_is_accepted(wrong_word)
    wrong_key = Mistake("recipe=teuken7b x=1", f"x: unknown key\n  write {key}=...\n")
    with pytest.raises(AssertionError):
        test_a_remedy_is_accepted(wrong_key)
