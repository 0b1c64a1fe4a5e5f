"""Names: one meaning per class and alias, verbs and nouns, no dialect."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from tests.house.test_house import ROOT, SOURCES, nodes_of, read

MOST_SIDE_BY_SIDE = 25
MOST_FRAGMENTS, SHORT_LINES, LEAST_MEDIAN_LINES = 28, 110, 110
# A participle does not name its object: `SearchResult`, not `Found`.
PARTICIPLE = re.compile(
    r"[A-Z][a-z]+(?:[^e]ed|en|elt|old|awn|wn)|Told|Found|Sent|Kept|Held|Sought|Cited|Tried"
)
TERMS = {"Learned"}  # learned positions: a term of the field
# Entry points and methods that Python, torch, Lightning, pydantic or a protocol call.
MOST_SINGLE_WORDS = 40
# Parts of names without information, and names that may have one.
DIALECT = {"told", "asked", "said", "settle", "settled", "kept", "found", "anew", "beside"}
EXCEPTIONS = {"found"}  # a key of reports of preflight and dry runs
FIRST_LINE_WORDS = re.compile(
    r"\b(told|tells?|asked|said|says|anew|nobody|whoever|of which|of whom|goes on|"
    r"left alone|way out|befalls?)\b"
)


def code() -> list[Path]:
    """List the files except tests, benchmarks and ``__init__.py``."""
    return [file for file in SOURCES if file.name != "__init__.py" and not benchmark(file)]


def benchmark(file: Path) -> bool:
    return file.is_relative_to(ROOT / "benchmarks")


def body_of(file: Path) -> list[ast.stmt]:
    (module, *_) = nodes_of(file)
    assert isinstance(module, ast.Module)
    return module.body


def public_classes() -> dict[str, list[str]]:
    """Find the files in which each public class is defined."""
    found = defaultdict(list)
    for file in SOURCES:
        for node in body_of(file):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(file.relative_to(ROOT)))
    return found


def test_an_alias_has_one_meaning() -> None:
    meanings = defaultdict(set)
    for file in SOURCES:
        for node in body_of(file):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    if re.fullmatch(r"[A-Z][a-z]\w+", name):
                        meanings[name].add(ast.dump(value))
    assert {name for name, values in meanings.items() if len(values) > 1} == set()


def test_a_public_function_is_a_verb_and_a_noun() -> None:
    single = {
        node.name
        for file in code()
        for node in nodes_of(file)
        if isinstance(node, ast.FunctionDef) and re.fullmatch(r"[a-z]+", node.name)
    }
    assert len(single) <= MOST_SINGLE_WORDS, sorted(single)


def test_no_name_is_dialect() -> None:
    names = {
        (str(file.relative_to(ROOT)), name)
        for file in SOURCES
        for node in nodes_of(file)
        for name in (
            getattr(node, attribute, None) for attribute in ("id", "name", "arg", "attr")
        )
        if isinstance(name, str)
        and name not in EXCEPTIONS
        and DIALECT & {*name.strip("_").lower().split("_")}
    }
    assert names == set()


def test_the_first_line_of_a_docstring_is_plain_english() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    odd = {
        (str(file.relative_to(ROOT)), line)
        for file in SOURCES
        for node in nodes_of(file)
        if isinstance(node, documented) and (text := ast.get_docstring(node))
        if FIRST_LINE_WORDS.search(line := text.partition("\n")[0])
    }
    assert odd == set()


def test_no_folder_has_too_many_files() -> None:
    crowded = Counter(
        str(file.parent.relative_to(ROOT)) for file in SOURCES if file.name != "__init__.py"
    )
    assert {room: n for room, n in crowded.items() if n > MOST_SIDE_BY_SIDE} == {}


def test_a_public_class_has_one_meaning() -> None:
    assert {name: files for name, files in public_classes().items() if len(files) > 1} == {}


def test_no_public_class_is_a_bare_participle() -> None:
    names = {name for name in public_classes() if PARTICIPLE.fullmatch(name)}
    assert names - TERMS == set()


def test_few_short_files_have_only_one_importer() -> None:
    importers: Counter[str] = Counter()
    for file in SOURCES:
        for node in nodes_of(file):
            if isinstance(node, ast.ImportFrom) and node.module:
                importers[node.module] += 1
    fragments = [
        name
        for file in code()
        if len(read(file).splitlines()) < SHORT_LINES
        and importers[name := ".".join(file.relative_to(ROOT).with_suffix("").parts)] == 1
        and not {"actions", "callbacks"} & {*file.parts}  # one file each
    ]
    assert len(fragments) <= MOST_FRAGMENTS, fragments


def test_the_median_file_is_not_short() -> None:
    lines = [len(read(file).splitlines()) for file in code()]
    assert median(lines) >= LEAST_MEDIAN_LINES
