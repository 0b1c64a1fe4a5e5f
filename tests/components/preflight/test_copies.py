"""A node imports from its own copies, or its preflight says that it does not, and why."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from command.arguments import ROOT
from components.preflight.copies import failed_copies
from components.preflight.node_checks import NODE_FOLDER, check_copies

ASK = (
    "import json, os, sys\nfrom pathlib import Path\n"
    "from components.preflight.node_checks import check_copies\n"
    "found = check_copies(Path(sys.argv[1]), 'node1', os.environ)\n"
    "print(json.dumps([one.model_dump() for one in found]))\n"
)


def ask(code: Path, folder: Path, run: Path) -> dict[str, str]:
    """Ask a process that imports from ``code`` whether that is in the node's ``folder``."""
    seen = os.environ | {"PYTHONPATH": str(code), NODE_FOLDER: str(folder)}
    words = [sys.executable, "-P", "-c", ASK, str(run)]
    done = subprocess.run(words, env=seen, capture_output=True, text=True, check=True)
    (found,) = json.loads(done.stdout)
    return dict(found)


def test_a_copy_that_is_imported_is_good_and_the_shared_code_is_not(tmp_path: Path) -> None:
    code = tmp_path / "node" / "code"
    shutil.copytree(ROOT / "components", code / "components")
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies" / "node1.failed").write_text("/tmp: 3 bytes are free\n")
    assert ask(code, tmp_path / "node", tmp_path)["verdict"] == "ok"
    bad = ask(ROOT, tmp_path / "node", tmp_path)
    assert (bad["verdict"], bad["found"]) == ("bad", "no copy: /tmp: 3 bytes are free")
    assert bad["rule"] == "cluster.imports"


def test_without_copies_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert list(check_copies(tmp_path, "node1", {})) == []
    assert failed_copies(tmp_path) == {}


def test_a_node_that_was_killed_while_it_copied_is_bad_without_a_reason(
    tmp_path: Path,
) -> None:
    (found,) = check_copies(tmp_path, "node1", {NODE_FOLDER: "/nowhere"})
    assert (found.verdict, found.found) == ("bad", "no copy: no error recorded")
