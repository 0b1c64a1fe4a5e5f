"""Results of a stage are reused by its version: a change of its code must raise the version.

The golden file has a digest of each module that a stage runs, without comments and docstrings.
Modules of other stages are not included, because their results are inputs.
"""

import ast
import hashlib
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from data_prep.stages.plan import STAGES

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = Path(__file__).parent / "versions.json"
FILES = {
    name: f"{function.partition(':')[0].replace('.', '/')}.py"
    for name, (_, function) in STAGES.items()
}
OURS = ("data_prep", "components/data")  # what decides results; the spec is in the settings
BUILT = {"tokens": ("components/data/byte_bpe.py", "components/data/unigram.py")}  # by name
WAY_OUT = (
    "if results of the stage {name} can differ, raise its version in data_prep/stages/plan.py; "
    "then, in any case, run UPDATE_GOLDEN=1 pytest tests/data_prep/stages/test_versions.py"
)


@cache
def digest(source: str) -> str:
    return hashlib.sha256(repr(_form(ast.parse(source))).encode()).hexdigest()[:16]


def _form(node: Any) -> Any:
    """Return a syntax tree as nested tuples that do not depend on the Python version."""
    if isinstance(node, list):
        return tuple(_form(child) for child in node if not _is_text(child))
    if not isinstance(node, ast.AST):
        return node
    fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
    return type(node).__name__, *((name, _form(value)) for name, value in fields)


def _is_text(node: Any) -> bool:
    """Return whether a node is a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _modules(path: Path, found: set[Path]) -> set[Path]:
    """Collect ``path`` and its imports from OURS, also within functions."""
    if path not in found:
        found.add(path)
        for name in _imported(ast.parse(path.read_text("utf-8"))):
            file = ROOT / f"{name.replace('.', '/')}.py"
            path_of = str(file.relative_to(ROOT))
            other = path_of in FILES.values()
            if file.is_file() and path_of.startswith(OURS) and not other:
                _modules(file, found)
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _code(name: str) -> dict[str, str]:
    found: set[Path] = set()
    for file in (FILES[name], *BUILT.get(name, ())):
        _modules(ROOT / file, found)
    return {str(file.relative_to(ROOT)): digest(file.read_text("utf-8")) for file in found}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    if os.environ.get("UPDATE_GOLDEN"):
        code = {path: value for name in STAGES for path, value in _code(name).items()}
        versions = {name: version for name, (version, _) in STAGES.items()}
        tree = {"versions": versions, "code": code}
        GOLDEN.write_text(json.dumps(tree, indent=1, sort_keys=True) + "\n")
    read: dict[str, Any] = json.loads(GOLDEN.read_text())
    return read


@pytest.mark.parametrize("name", STAGES)
def test_changed_code_of_a_stage_needs_a_new_version(name, golden):
    code = _code(name)
    changed = sorted(path for path in code if golden["code"].get(path) != code[path])
    way_out = WAY_OUT.format(name=name)
    assert not changed, f"{', '.join(changed)} changed: {way_out}"
    assert STAGES[name][0] == golden["versions"][name], f"the version was raised: {way_out}"


def test_every_stage_has_a_version(golden):
    assert golden["versions"].keys() == STAGES.keys()
    assert set(FILES.values()) <= golden["code"].keys()


def test_the_code_of_a_stage_includes_imports_within_functions():
    assert {"data_prep/steps.py", "data_prep/filters/published.py"} <= _code("clean").keys()
    assert "data_prep/steps.py" not in _code("duplicates")
    tokens = _code("tokens")
    assert {"components/data/token_file.py", "components/data/byte_bpe.py"} <= tokens.keys()


def test_the_digest_depends_on_code_and_not_on_comments():
    code = 'def f(x: int) -> int:\n    """Say."""\n    return g(x, 3)\n'
    same = '"""Module."""\n# why\ndef f(x: int) -> int:\n\n    return g(\n        x, 3)\n'
    assert digest(code) == digest(same)
    for mutated in ("g(x, 4)", "g(3, x)", "h(x, 3)", "-g(x, 3)", "g(x, y=3)", "g(x, '3')"):
        assert digest(code.replace("g(x, 3)", mutated)) != digest(code)
