"""A folder is bad that takes no file, or has no room for what the run writes."""

import subprocess
import sys
from pathlib import Path

from command.arguments import ROOT, read_point
from command.composition.compose import compose_recipe
from components.config.schema.cluster import Preflight
from components.planner.interruptions import checkpoint_bytes
from components.planner.job import job_from_recipe
from components.preflight.node_checks import GIB, check_place, check_places

LIMITED = """
import resource, sys
from pathlib import Path
from components.preflight.node_checks import check_place
resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096))
found = check_place("run folder", Path(sys.argv[1]), 0)
sys.stdout.write(f"{found.verdict} {found.found}")
"""


def test_a_folder_with_room_is_good_and_left_as_it_was(tmp_path: Path) -> None:
    assert check_place("run folder", tmp_path, 1).verdict == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_for_the_checkpoints_is_bad(tmp_path: Path) -> None:
    found = check_place("run folder", tmp_path, 2**60)
    assert (found.verdict, found.expected) == ("bad", f"writable, {2**60 / GIB:.1f} GiB free")


def test_a_folder_that_is_not_there_is_bad(tmp_path: Path) -> None:
    found = check_place("temporary folder", tmp_path / "gone", 0)
    assert (found.verdict, "No such file" in found.found) == ("bad", True)


def test_where_a_file_may_not_grow_nothing_is_left_of_the_probe(tmp_path: Path) -> None:
    words = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"bad {tmp_path}: File too large"
    assert list(tmp_path.iterdir()) == []


def test_the_run_needs_room_for_as_many_checkpoints_as_conf_says(
    rules: Preflight, tmp_path: Path
) -> None:
    recipe = compose_recipe(read_point(["recipe=teuken7b", "cluster=juwels"]))
    run, temporary = check_places(recipe, rules, tmp_path)
    expected = 2 * checkpoint_bytes(job_from_recipe(recipe)) / GIB
    assert expected > 1
    assert run.expected == f"writable, {expected:.1f} GiB free"
    assert temporary.expected == "writable, 1.0 GiB free"
