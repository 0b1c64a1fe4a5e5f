"""Private names of torch stay in one room."""

import ast
import re
from collections.abc import Iterator

from tests.house.test_house import ROOT, SOURCES

ROOM = ROOT / "components" / "torch_internals"
# Names without torch's own before them, as of a module or a mesh, that the room once took over.
TAKEN = {
    *("_forward_pre_hooks", "_forward_hooks", "_local_tensor", "_cdata", "_opname"),
    *("_overloadpacket", "_flatten", "_concatenate", "_prepare_forward_infra"),
    *("_setup_forward_recv_info", "_create_grad_recv_info", "_shape_inference"),
}
# Whoever says such a name in text, for a log or a trace, does not call it.
ELSEWHERE: set[str] = set()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(source: str) -> Iterator[str]:
    """Find what is imported from torch, read of it, or read of its objects."""
    tree = ast.parse(source)
    of_torch = {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            of_torch |= {alias.asname or alias.name for alias in node.names}
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found = [alias for alias in node.names if alias.name.split(".")[0] == "torch"]
            of_torch |= {alias.asname for alias in found if alias.asname}
            yield from (alias.name for alias in found)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and root_of(node.value) in of_torch:
            of_torch |= {name.id for name in node.targets if isinstance(name, ast.Name)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and (root_of(node) in of_torch or node.attr in TAKEN)
        ) or is_asked_by_name(node, of_torch):
            yield ast.unparse(node)


def root_of(node: ast.AST) -> str | None:
    """Name what a chain of attributes begins with, ``torch`` of ``torch.ops.aten``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def is_asked_by_name(node: ast.AST, of_torch: set[str]) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"getattr", "setattr", "hasattr"}
        and root_of(node.args[0]) in of_torch
    )


def found_in(source: str) -> set[str]:
    words = {name: name.replace("'", ".").replace('"', ".") for name in private_names(source)}
    return {name for name, said in words.items() if any(map(is_private, said.split(".")))}


def test_no_private_name_of_torch_is_used_outside_the_room() -> None:
    found = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in SOURCES
        if ROOM not in file.parents
        for name in found_in(file.read_text("utf-8"))
    }
    assert found == ELSEWHERE


def test_every_file_of_the_room_says_where_its_names_were_seen() -> None:
    files = [file for file in sorted(ROOM.glob("*.py")) if file.stem != "__init__"]
    seen = re.compile(r"[Cc]hecked in (torch )?2\.\d+ to\s2\.\d+")
    silent = [file.name for file in files if not seen.search(file.read_text("utf-8"))]
    assert silent == []
