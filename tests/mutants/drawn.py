"""Draw faults at random, plant them one at a time, and see which tests of `make test` notice.

    python -m tests.mutants.drawn [COUNT [SEED]]    forty faults of seed 0

Each package of `PACKAGES` has an equal share. A fault changes one operator, constant, condition
or statement. It survives if all tests of its module pass: those that import the module, and the
mirrored folder. Read whether it changes behavior at all. The status is 1 if fewer than 95 % are
caught.
"""

import ast
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from random import Random
from typing import Any

from components.terminal import print_output
from tests.changed import find_tests
from tests.mutants.__main__ import copy_tree, plant
from tests.mutants.faults import ROOT, Fault

PACKAGES = tuple(f"components/{name}" for name in ("engine", "data", "checkpoint", "config"))
PACKAGES += ("cluster",)
LEAST_CAUGHT = 0.95
# A busy host takes minutes for a test that takes seconds; a fault may make one hang.
OPTIONS = ("-m", "not long and not cluster", "--timeout=300")
_PAIRS: list[tuple[Any, Any]] = [
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.And, ast.Or)),
]
SWAPPED: dict[type[ast.AST], Any] = {
    one: other for pair in _PAIRS for one, other in (pair, pair[::-1])
}
# Texts of errors are asserted in a table, and types are not computed with.
SKIPPED_NODES = (ast.Raise, ast.Assert, ast.JoinedStr)
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list"}


@dataclass(frozen=True, kw_only=True)
class DrawnFault(Fault):
    """A fault at a place of its file; ``instead_of`` is the whole file."""

    test: str = ""

    @property
    def pytest_words(self) -> list[str]:
        module = self.file.removesuffix(".py").replace("/", ".")
        return [*OPTIONS, *sorted(find_tests({module}, hops=1))]


def main(words: Sequence[str]) -> int:
    """Plant the faults, and print a line for each."""
    count, seed = (*map(int, words), *(40, 0)[len(words) :])
    with tempfile.TemporaryDirectory() as home:
        copies: Queue[Path] = Queue()
        copies.put(copy_tree(Path(home) / "tree"))
        caught = [plant(fault, copies) for fault in draw_faults(count, seed)]
    print_output(f"{sum(caught)} of {count} drawn faults are caught (seed {seed})")
    return 0 if sum(caught) >= LEAST_CAUGHT * count else 1


def draw_faults(count: int, seed: int) -> Iterator[DrawnFault]:
    """Draw faults, from each package in turn."""
    random = Random(seed)
    drawn = set[tuple[Path, str]]()
    while len(drawn) < count:
        package = ROOT / PACKAGES[len(drawn) % len(PACKAGES)]
        file = random.choice(sorted(package.rglob("*.py")))
        sound = file.read_text("utf-8")
        faults = list(list_mutations(sound))
        if not faults:
            continue
        description, faulty = random.choice(faults)
        if (file, faulty) not in drawn:
            drawn.add((file, faulty))
            name = file.relative_to(ROOT).as_posix()
            change = f"{name}:{description}"
            yield DrawnFault(fault=change, file=name, instead_of=sound, plant=faulty)


def list_mutations(source: str) -> Iterator[tuple[str, str]]:
    """Yield for each mutation of a module its line and change, and the whole changed text."""
    lines = source.encode().splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    for node, text in _mutate_nodes(ast.parse(source)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = source.encode()[begin:end]
        changed = source.encode()[:begin] + text.encode() + source.encode()[end:]
        yield f"{node.lineno}: {before.decode()} -> {text}", changed.decode()


def _mutate_nodes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield nodes and the text that takes the place of each."""
    for node in _walk(tree):
        match node:
            case ast.Compare(left, [operator], [right]) if type(operator) in SWAPPED:
                other = ast.Compare(left, [SWAPPED[type(operator)]()], [right])
                yield node, f"({ast.unparse(other)})"
            case ast.BinOp(left, operator, right) if type(operator) in SWAPPED:
                yield (
                    node,
                    f"({ast.unparse(ast.BinOp(left, SWAPPED[type(operator)](), right))})",
                )
            case ast.BoolOp(operator, values):
                yield node, f"({ast.unparse(ast.BoolOp(SWAPPED[type(operator)](), values))})"
            case ast.Constant(bool()):
                yield node, str(not node.value)
            case ast.Constant(int(value)):
                yield node, str(value + 1)
            case ast.If(test) | ast.IfExp(test):
                yield test, f"(not ({ast.unparse(test)}))"
            case ast.Expr(ast.Call()) | ast.AugAssign():
                yield node, "pass"
            case ast.Assign([ast.Attribute() | ast.Subscript()]):
                yield node, "pass"


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and those below it, except `SKIPPED_NODES` and `SKIPPED_FIELDS`."""
    yield node
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            skipped = field in SKIPPED_FIELDS or isinstance(child, SKIPPED_NODES)
            if isinstance(child, ast.AST) and not skipped:
                yield from _walk(child)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
