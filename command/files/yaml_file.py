"""Read received YAML files as plain data, with the line of each key. Nothing is imported.

Every guard is a separate function so that a test can disable it and show what it blocks.
"""

import re
import stat
from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn
from unicodedata import category

import yaml
from yaml.constructor import ConstructorError

from components.config.schema.earlier_names import update_names, update_path
from components.errors import RecipeError

MAX_BYTES = 1_000_000
MOST_LEVELS = 40  # the deepest recipe here has 8
# Characters that display a line differently from its content: bidirectional controls (Boucher
# and Anderson 2021, arXiv 2111.00169, table 1) and the byte order mark.
HIDDEN = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
# Also refused: line separators, terminal control characters, surrogates.
ACTING = frozenset({"Cc", "Zl", "Zp", "Cs"})
PLAIN_CONTROLS = frozenset("\n\t")
TIMESTAMP = "tag:yaml.org,2002:timestamp"
FLOAT = "tag:yaml.org,2002:float"
# As in YAML 1.2 and OmegaConf. PyYAML requires a decimal point, and a sign in the exponent.
EXPONENT = re.compile(r"[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")


@dataclass(frozen=True)
class ReceivedYaml:
    """A file's mapping, the lines of its dotted keys (counted from 1), and its text."""

    file: Path
    tree: dict[str, Any]
    lines: Mapping[str, int]
    text: str

    def locate_error(self, error: RecipeError) -> RecipeError:
        """Prefix an error's path with file and line, if the path is a key of the file."""
        return tell_line((self,), error)


def tell_line(files: Sequence[ReceivedYaml], error: RecipeError) -> RecipeError:
    """Prefix an error's path with the last file that has its key, and the line."""
    path = error.path
    while path:
        # The last two are keys as in a bundle.
        for key in (path, f"requested.values.{path}", f"composed.{path}"):
            for sent in (file for file in reversed(files) if key in file.lines):
                where = f"{sent.file.name}:{sent.lines[key]}: {error.path}"
                return RecipeError(where, error.problem, error.remedy)
        path = path.rpartition("." if "[" not in path else "[")[0]
    return error


class PlainLoader(yaml.SafeLoader):
    """YAML loader without tags, aliases, dates, repeated keys or deep nesting."""

    # As in OmegaConf: a date is text.
    yaml_implicit_resolvers = {  # noqa: RUF012 (the name and form that PyYAML requires)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._level = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML is untyped here
        refuse_alias(event)
        refuse_tag(event)
        refuse_depth(self._level, event)
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=deep)
        except ValueError as error:  # an integer with more digits than Python reads
            _stop(node, str(error))
        refuse_acting(value, node)
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        refuse_repeated(node)
        return super().construct_mapping(node, deep=deep)


PlainLoader.add_implicit_resolver(FLOAT, EXPONENT, list("-+0123456789"))


def read_sections(file: Path, kind: str, section: str = "") -> ReceivedYaml:
    """Read sections of a recipe, below ``section``, with the present names of their keys."""
    sent = read_data(file, kind)
    lines = {update_path(key): line for key, line in sent.lines.items()}
    return replace(sent, tree=update_names(sent.tree, section), lines=lines)


def read_data(file: Path, kind: str) -> ReceivedYaml:
    """Read a mapping; ``kind`` is the command-line key that named the file."""
    text = _read_text(file, kind)
    tree, lines = _parse(file, text)
    if not isinstance(tree, dict):
        raise RecipeError(kind, f"{file} is not a mapping", "write lines of key: value")
    return ReceivedYaml(file, deepcopy(tree), lines, text)


@lru_cache(maxsize=64)  # the points of a sweep read the same files
def _parse(file: Path, text: str) -> tuple[Any, Mapping[str, int]]:
    """Return the content of a file's text, and the lines of its keys."""
    refuse_hidden(text, file)
    try:
        loader = PlainLoader(text)
        node = loader.get_single_node()
        tree = loader.construct_document(node) if node else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        _refuse(file, mark.line + 1 if mark else 1, str(error.problem))
    except yaml.reader.ReaderError as error:
        _refuse(file, text.count("\n", 0, error.position) + 1, error.reason)
    except RecursionError:
        _refuse(file, 1, "nested too deeply")
    return tree, dict(_lines(node)) if node else {}


def _read_text(file: Path, kind: str) -> str:
    try:
        refuse_device(file, kind)
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        refuse_size(content, file)
        return content.decode("utf-8")
    except FileNotFoundError:
        raise RecipeError(kind, f"{file} does not exist", "check the path") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problem = f"cannot read {file}: {error}"
        raise RecipeError(f"{file.name}:{line}", problem, "save the file as UTF-8") from None
    except OSError as error:
        raise RecipeError(kind, f"cannot read {file}: {error}", "check the file") from None


def _refuse(file: Path, line: int, problem: str) -> NoReturn:
    where = f"{file.name}:{line}"
    raise RecipeError(where, f"{file} is not plain YAML: {problem}", "correct the file")


def refuse_device(file: Path, kind: str) -> None:
    """Refuse devices, pipes and folders, where a read may never start or end."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise RecipeError(kind, f"{file} is not a regular file", "choose a file")


def refuse_size(content: bytes, file: Path) -> None:
    """Refuse more than :data:`MAX_BYTES`. At most one more byte was read."""
    if len(content) > MAX_BYTES:
        line = content.count(b"\n") + 1
        problem = f"{file} is larger than {MAX_BYTES:,} bytes"
        raise RecipeError(f"{file.name}:{line}", problem, "check the path")


def refuse_hidden(text: str, file: Path) -> None:
    """Refuse characters that make a text look different from its content."""
    for character in HIDDEN.intersection(text):
        line = text.count("\n", 0, text.index(character)) + 1
        _refuse(file, line, f"the invisible character U+{ord(character):04X}")


def refuse_acting(value: object, node: Any) -> None:
    """Refuse escaped text with terminal control characters or hidden characters."""
    for character in value if isinstance(value, str) else "":
        hidden = character in HIDDEN or category(character) in ACTING
        if hidden and character not in PLAIN_CONTROLS:
            _stop(node, f"a string contains the control character U+{ord(character):04X}")


def refuse_alias(event: Any) -> None:
    """Refuse aliases, which can expand exponentially."""
    if isinstance(event, yaml.AliasEvent):
        _stop(event, "aliases are not allowed")


def refuse_tag(event: Any) -> None:
    """Refuse all tags: some create objects."""
    if (tag := getattr(event, "tag", None)) is not None:
        _stop(event, f"the tag {tag} is not allowed")


def refuse_depth(level: int, event: Any) -> None:
    """Refuse deep nesting, which would exhaust recursive readers."""
    if level > MOST_LEVELS:
        _stop(event, f"more than {MOST_LEVELS} levels")


def refuse_repeated(node: Any) -> None:
    """Refuse a repeated key, and the merge key, which adds keys invisibly."""
    seen = set()
    for key, _ in node.value:
        if key.value == "<<":
            _stop(key, "'<<' is not allowed")
        if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
            _stop(key, f"{key.value!r} is given twice")
        seen.add((key.tag, str(key.value)))


def _stop(node: Any, problem: str) -> NoReturn:
    raise ConstructorError(None, None, problem, node.start_mark)


def _lines(node: yaml.Node, path: str = "") -> Iterator[tuple[str, int]]:
    items: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        dot = "." if path else ""
        items = [(f"{path}{dot}{key.value}", key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        items = [(f"{path}[{index}]", item, item) for index, item in enumerate(node.value)]
    for here, marked, value in items:
        yield here, marked.start_mark.line + 1
        yield from _lines(value, here)
