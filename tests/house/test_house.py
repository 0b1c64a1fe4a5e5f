"""Rules for all sources: short files and functions, no names of recipes, one terminal."""

import ast
import re
from functools import cache
from pathlib import Path

from benchmarks.recipes import published_recipes, recipe_file
from command.files.trusted_paths import option_names

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("command", "cluster", "components", "data_prep", "benchmarks")
SOURCES = sorted([
    ROOT / "run.py",
    *(file for room in ROOMS for file in (ROOT / room).rglob("*.py")),
])
MOST_LINES = 400
MOST_FUNCTION_LINES = 60
MOST_YAML_LINES = 60
MOST_PROFILE_LINES = 120  # a line for each figure and each variable, with its reason


@cache
def read(file: Path) -> str:
    return file.read_text("utf-8")


@cache
def nodes_of(file: Path) -> list[ast.AST]:
    """Return all nodes of a file's syntax tree, the module first."""
    return list(ast.walk(ast.parse(read(file))))


def test_files_are_short() -> None:
    assert len(SOURCES) > 50
    tests = sorted((ROOT / "tests").rglob("*.py"))
    long = {
        str(file.relative_to(ROOT)): lines
        for file in [*SOURCES, *tests]
        if (lines := len(read(file).splitlines())) > MOST_LINES
    }
    assert long == {}


def test_functions_are_short() -> None:
    long = {
        f"{file.relative_to(ROOT)}:{node.name}": node.end_lineno - node.lineno + 1
        for file in SOURCES
        for node in nodes_of(file)
        if isinstance(node, ast.FunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MOST_FUNCTION_LINES
    }
    assert long == {}


def test_recipes_and_groups_are_short() -> None:
    recipes = (recipe_file(name) for name in published_recipes())
    files = [*recipes, *(ROOT / "conf").rglob("*.yaml")]
    assert len(files) > 10
    most = {"cluster": MOST_PROFILE_LINES}
    long = {
        file.name: lines
        for file in files
        if (lines := len(read(file).splitlines())) > most.get(file.parent.name, MOST_YAML_LINES)
    }
    assert long == {}


def test_no_code_names_a_recipe_a_model_or_a_cluster() -> None:
    stems = {*option_names("model"), *option_names("cluster"), *published_recipes()}
    words = re.compile(r"\b(" + "|".join(sorted(stems - {"local"})) + r")\b")
    found = {
        f"{file.relative_to(ROOT)}: {match.group()}"
        for file in SOURCES
        for match in words.finditer(read(file))
    }
    assert found == set()


def test_only_two_files_import_hydra() -> None:
    importing = {
        str(file.relative_to(ROOT))
        for file in SOURCES
        if re.search(r"^\s*(from|import) (hydra|omegaconf)\b", read(file), re.M)
    }
    assert importing == {"command/arguments.py", "command/composition/conf_groups.py"}


def test_one_module_writes_to_the_terminal() -> None:
    writes = re.compile(r"\bsys\.(?:__)?std(?:out|err)|\bConsole\(|\bos\.write\((?:1|2|STAND)")
    # Allowed: a redirection of a library's output to stderr, a test whether the reader is gone.
    turns = re.compile(
        r"redirect_stdout\(sys\.stderr|stdout=sys\.stderr|setStream\(sys\.stderr"
        r"|sys\.stdout\.flush\(\)"
    )
    found = {
        str(file.relative_to(ROOT))
        for file in SOURCES
        if not file.is_relative_to(ROOT / "benchmarks")
        and writes.search(turns.sub("", read(file)))
    }
    # Two files print before anything is imported: for a signal, and for an old Python. A child
    # process answers on its standard output.
    assert found == {
        *("components/terminal.py", "command/entry.py", "components/versions.py"),
        "components/data/probe_tokenizer.py",
    }
