"""Does this node import from its own copies, where the recipe asks for that?"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from components.preflight.verdict import Finding

FOLDER = "copies"  # below the run's folder
NODE_FOLDER = "KOCHBUCH_NODE_FOLDER"  # where a job script says that the copies are


def check_copies(run: Path, node: str, seen: Mapping[str, str]) -> Iterator[Finding]:
    """Look where this code was imported from; a node without a copy took the shared one."""
    if NODE_FOLDER not in seen:
        return
    folder, why = seen[NODE_FOLDER], failed_copies(run).get(node, "nobody said why")
    own = Path(__file__).is_relative_to(folder)
    yield Finding(
        check="copies",
        found=f"imports from {folder}" if own else f"no copy: {why}",
        expected=f"Python and the code in {folder}",
        rule="cluster.imports",
        verdict="ok" if own else "bad",
        remedy="make room there, or name another cluster.site.node_folder",
    )


def failed_copies(run: Path) -> dict[str, str]:
    """Read by node why it has no copy."""
    files = sorted((run / FOLDER).glob("*.failed"))
    return {file.stem: file.read_text("utf-8").strip() for file in files}
