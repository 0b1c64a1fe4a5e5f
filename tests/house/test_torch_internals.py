"""Private names of torch stay in one room."""

import ast
import re
from collections.abc import Iterable, Iterator

from tests.house.test_house import ROOT, SOURCES, nodes_of

ROOM = ROOT / "components" / "torch_internals"
# Names of objects such as modules and meshes: the source does not show that they are torch's.
TAKEN = {
    *("_forward_pre_hooks", "_forward_hooks", "_local_tensor", "_cdata", "_opname"),
    *("_overloadpacket", "_flatten", "_concatenate", "_prepare_forward_infra"),
    *("_setup_forward_recv_info", "_create_grad_recv_info", "_shape_inference"),
}
# Files that have such a name only in a text, for a log or a trace.
ELSEWHERE: set[str] = set()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Find the names that a source imports from torch or reads from torch and its objects."""
    nodes = list(nodes)
    of_torch = {"torch"}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            of_torch |= {alias.asname or alias.name for alias in node.names}
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found = [alias for alias in node.names if alias.name.split(".")[0] == "torch"]
            of_torch |= {alias.asname for alias in found if alias.asname}
            yield from (alias.name for alias in found)
    for node in nodes:
        if isinstance(node, ast.Assign) and root_of(node.value) in of_torch:
            of_torch |= {name.id for name in node.targets if isinstance(name, ast.Name)}
    for node in nodes:
        if (
            isinstance(node, ast.Attribute)
            and (root_of(node) in of_torch or node.attr in TAKEN)
        ) or is_read_by_name(node, of_torch):
            yield ast.unparse(node)


def root_of(node: ast.AST) -> str | None:
    """Return the first name of a chain of attributes: ``torch`` for ``torch.ops.aten``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def is_read_by_name(node: ast.AST, of_torch: set[str]) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"getattr", "setattr", "hasattr"}
        and root_of(node.args[0]) in of_torch
    )


def found_in(nodes: Iterable[ast.AST]) -> set[str]:
    words = {name: name.replace("'", ".").replace('"', ".") for name in private_names(nodes)}
    return {name for name, plain in words.items() if any(map(is_private, plain.split(".")))}


def test_only_the_room_uses_private_names_of_torch() -> None:
    found = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in SOURCES
        if ROOM not in file.parents
        for name in found_in(nodes_of(file))
    }
    assert found == ELSEWHERE


PRIVATE = (
    "from torch._guards import active_fake_mode",
    "from torch.distributed.tensor.placement_types import _StridedShard",
    "import torch._dynamo",
    "import torch\ntorch._C._current_graph_task_id()",
    "import torch\naten = torch.ops.aten\naten._grouped_mm(1)",
    "import torch.distributed as dist\ndist._functional_collectives",
    "from torch import nn\nnn.Module._apply",
    "import torch\ngetattr(torch, '_foreach_norm')",
    "mesh._flatten('name')",
    "super()._create_grad_recv_info()",
)
PUBLIC = (
    "import torch\ntorch.ops.aten.mm, torch.__version__, torch.nn.functional.grouped_mm",
    "self._stages = stage._compute",
    "from components.model import _own",
    "import torch\n_ours = torch.ones(1)\n_ours.sum()",
)


def test_the_search_finds_private_names_of_torch_and_no_others() -> None:
    found = [source for source in PRIVATE + PUBLIC if found_in(ast.walk(ast.parse(source)))]
    assert found == list(PRIVATE)


def test_every_file_of_the_room_names_the_versions_that_have_its_names() -> None:
    files = [file for file in sorted(ROOM.glob("*.py")) if file.stem != "__init__"]
    seen = re.compile(r"[Cc]hecked in (torch )?2\.\d+ to\s2\.\d+")
    silent = [file.name for file in files if not seen.search(file.read_text("utf-8"))]
    assert silent == []
    assert any(found_in(nodes_of(file)) for file in files)
