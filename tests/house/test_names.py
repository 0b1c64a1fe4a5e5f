"""A thing is found by its word: one meaning a public class, no crowded folder, no riddles."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from tests.house.test_house import ROOT, SOURCES

MOST_SIDE_BY_SIDE = 25
MOST_FRAGMENTS, SHORT_LINES, LEAST_MEDIAN_LINES = 28, 110, 110
# A participle by itself does not say of what: `SearchResult`, not `Found`.
PARTICIPLE = re.compile(
    r"[A-Z][a-z]+(?:[^e]ed|en|elt|old|awn|wn)|Told|Found|Sent|Kept|Held|Sought|Cited|Tried"
)
SAID = {"Learned"}  # of positions, as the field has it


def code() -> list[Path]:
    """List what is neither a test, a benchmark nor a package's own file."""
    return [file for file in SOURCES if file.name != "__init__.py" and not benchmark(file)]


def benchmark(file: Path) -> bool:
    return file.is_relative_to(ROOT / "benchmarks")


def public_classes() -> dict[str, list[str]]:
    """Find the files in which each public class is defined."""
    found = defaultdict(list)
    for file in SOURCES:
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(file.relative_to(ROOT)))
    return found


def test_no_folder_holds_more_files_than_a_reader_overlooks() -> None:
    crowded = Counter(
        str(file.parent.relative_to(ROOT)) for file in SOURCES if file.name != "__init__.py"
    )
    assert {room: n for room, n in crowded.items() if n > MOST_SIDE_BY_SIDE} == {}


def test_a_public_class_has_one_meaning() -> None:
    assert {name: files for name, files in public_classes().items() if len(files) > 1} == {}


def test_no_public_class_is_a_bare_participle() -> None:
    names = {name for name in public_classes() if PARTICIPLE.fullmatch(name)}
    assert names - SAID == set()


def test_few_files_are_fragments_of_the_one_that_imports_them() -> None:
    importers: Counter[str] = Counter()
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                importers[node.module] += 1
    fragments = [
        name
        for file in code()
        if len(file.read_text("utf-8").splitlines()) < SHORT_LINES
        and importers[name := ".".join(file.relative_to(ROOT).with_suffix("").parts)] == 1
        and not {"actions", "callbacks"} & {*file.parts}  # one file each
    ]
    assert len(fragments) <= MOST_FRAGMENTS, fragments


def test_files_are_whole_things_in_the_middle() -> None:
    lines = [len(file.read_text("utf-8").splitlines()) for file in code()]
    assert median(lines) >= LEAST_MEDIAN_LINES
