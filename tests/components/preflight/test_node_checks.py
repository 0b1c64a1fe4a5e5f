"""Clock, folders, copies, packages and data of a node."""

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from command.arguments import ROOT, read_point
from command.composition.compose import compose_recipe
from components.config.schema.cluster import Preflight
from components.data.files import FileRecord, record_file
from components.data.manifest import Manifest, TokenizerRecord
from components.planner.interruptions import checkpoint_bytes
from components.planner.job import job_from_recipe
from components.preflight import node_checks
from components.preflight import node_checks as checks
from components.preflight.copies import failed_copies
from components.run.folder import RunFolder
from components.run.provenance import describe_software
from components.versions import PYTHON, TORCH
from tests.components.preflight.conftest import compose


def test_a_clock_is_not_ahead_of_itself_and_its_server_stops() -> None:
    with checks.telling_time() as port:
        found = checks.ask_time("127.0.0.1", port)
    assert abs(found.ahead_seconds) <= found.uncertain_seconds < 1
    with pytest.raises(ConnectionError):
        checks.ask_time("127.0.0.1", port)


def test_a_node_learns_how_far_its_clock_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asking = time.time, threading.current_thread()

    def late() -> float:
        return real() - 100 * (threading.current_thread() is asking)

    with checks.telling_time() as port, monkeypatch.context() as skewed:
        skewed.setattr(time, "time", late)
        found = checks.ask_time("127.0.0.1", port)
    assert found.ahead_seconds == pytest.approx(100, abs=0.5)


def test_a_folder_with_room_is_good_and_unchanged(tmp_path: Path) -> None:
    assert checks.check_place("run folder", tmp_path, 1).verdict == "ok"
    assert list(tmp_path.iterdir()) == []
    found = checks.check_place("run folder", tmp_path, 2**60)
    room = f"writable, {2**60 / checks.GIB:.1f} GiB free"
    assert (found.verdict, found.expected) == ("bad", room)
    found = checks.check_place("temporary folder", tmp_path / "gone", 0)
    assert (found.verdict, "No such file" in found.found) == ("bad", True)


def test_a_failed_probe_leaves_no_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, limits[1]))
    try:
        found = checks.check_place("run folder", tmp_path, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (found.verdict, found.found) == ("bad", f"{tmp_path}: File too large")
    assert list(tmp_path.iterdir()) == []


def test_a_run_needs_room_for_two_checkpoints(rules: Preflight, tmp_path: Path) -> None:
    recipe = compose_recipe(read_point(["recipe=teuken7b", "cluster=juwels"]))
    run, temporary = checks.check_places(recipe, rules, tmp_path)
    expected = 2 * checkpoint_bytes(job_from_recipe(recipe)) / checks.GIB
    assert expected > 1
    assert run.expected == f"writable, {expected:.1f} GiB free"
    assert temporary.expected == "writable, 1.0 GiB free"


ASK = (
    "import json, os, sys\nfrom pathlib import Path\n"
    "from components.preflight.node_checks import check_copies\n"
    "found = check_copies(Path(sys.argv[1]), 'node1', os.environ)\n"
    "print(json.dumps([one.model_dump() for one in found]))\n"
)


def test_an_imported_copy_is_good_and_shared_code_is_bad(tmp_path: Path) -> None:
    code, node = tmp_path / "node" / "code", {checks.NODE_FOLDER: str(tmp_path / "node")}
    shutil.copytree(ROOT / "components", code / "components")
    seen = os.environ | {"PYTHONPATH": str(code)} | node
    words = [sys.executable, "-P", "-c", ASK, str(tmp_path)]
    done = subprocess.run(words, env=seen, capture_output=True, text=True, check=True)
    assert [one["verdict"] for one in json.loads(done.stdout)] == ["ok"]
    (bad,) = checks.check_copies(tmp_path, "node1", node)
    assert (bad.verdict, bad.found) == ("bad", "no copy: no error recorded")
    assert bad.rule == "cluster.imports"
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies" / "node1.failed").write_text("/tmp: 3 bytes are free\n")
    (bad,) = checks.check_copies(tmp_path, "node1", node)
    assert (bad.verdict, bad.found) == ("bad", "no copy: /tmp: 3 bytes are free")


def test_without_copies_there_is_no_finding(tmp_path: Path) -> None:
    assert list(checks.check_copies(tmp_path, "node1", {})) == []
    assert failed_copies(tmp_path) == {}


HERE = {"numpy": version("numpy"), "python": platform.python_version()}


def write(folder: RunFolder, packages: dict[str, str], python: str = HERE["python"]) -> None:
    folder.write_json("software.json", {"python": python, "packages": packages})


def test_the_packages_of_a_run_are_good(folder: RunFolder) -> None:
    folder.write_json("software.json", describe_software().model_dump(mode="json"))
    found = checks.check_packages(folder, ["run"])
    assert (found.verdict, found.rule) == ("ok", "software.json")


@pytest.mark.parametrize(
    ("packages", "python", "said"),
    [
        ({"numpy": "0.0.1"}, HERE["python"], "numpy {numpy}, not 0.0.1"),
        ({"gone-away": "1.0"}, HERE["python"], "gone-away absent, not 1.0"),
        ({}, "2.7.18", "python {python}, not 2.7.18"),
    ],
)
def test_another_version_is_named(folder: RunFolder, packages, python: str, said: str) -> None:
    write(folder, packages, python)
    found = checks.check_packages(folder, ["run"])
    assert (found.verdict, found.found) == ("bad", said.format(**HERE))


def test_at_most_three_other_versions_are_named(folder: RunFolder) -> None:
    write(folder, {f"gone-{n}": "1" for n in range(5)})
    said = checks.check_packages(folder, ["run"]).found
    assert said.endswith("gone-2 absent, not 1 and 2 more")


def test_unused_packages_are_not_checked(folder: RunFolder) -> None:
    write(folder, {"numpy": "absent"})
    assert checks.check_packages(folder, ["run"]).verdict == "ok"
    write(folder, {"torchao": "0", "datatrove": "0"})
    assert checks.check_packages(folder, ["run"]).verdict == "ok"
    found = checks.check_packages(folder, ["run", "fp8"])
    assert (found.verdict, found.found) == ("bad", f"torchao {version('torchao')}, not 0")


def test_without_a_run_versions_of_the_lock_are_expected(folder: RunFolder) -> None:
    expected, where = checks.expected_versions(folder, ["run"])
    assert where == "requirements"
    assert expected["hydra-core"] == "1.3.8"
    assert "torch" not in expected  # the site's own wins
    assert "deepspeed" not in expected
    assert checks.expected_versions(folder, ["run", "deepspeed"])[0]["deepspeed"] == "0.19.8"
    assert checks.expected_versions(folder, ["run", "fp8"])[0]["torchao"] == "0.18.0"
    # The lock has two lines of numpy, by Python's version.
    new = tuple(map(int, platform.python_version_tuple()[:2])) >= (3, 12)
    assert expected["numpy"].startswith("2.5" if new else "2.4")


@pytest.mark.parametrize(
    ("torch", "python", "verdict"),
    [
        ("2.13.0+cpu", "3.12.3", "ok"),
        ("2.9.1", "3.12.3", "bad"),
        ("2.10.0a0+git449b176", "3.10.2", "bad"),
        ("2.16.0", "3.12.3", "unknown"),
        ("2.9.1", "3.14.0", "bad"),
    ],
)
def test_versions_outside_the_range_are_found(torch, python: str, verdict, monkeypatch) -> None:
    here = {PYTHON: python, TORCH: torch}
    monkeypatch.setattr(node_checks, "read_installed_versions", lambda: here)
    found = checks.check_versions()
    assert found.verdict == verdict
    assert found.found == f"Python {python}, torch {torch}"
    assert found.expected == f"{TORCH}, {PYTHON}"


@pytest.fixture
def place(tmp_path: Path, folder: RunFolder) -> Path:
    """A prepared folder with two files, which the run's folder names."""
    place = tmp_path / "data"
    place.mkdir()
    for name in ("a.model", "b.model"):
        (place / name).write_bytes(name.encode() * 1_000)
    records = tuple(record_file(file) for file in sorted(place.iterdir()))
    tokenizer = TokenizerRecord(settings={}, files=records, vocab_size=2, eod_id=0)
    manifest = Manifest(key="k" * 64, tokenizer=tokenizer, held_out_fraction=0.1, sources={})
    manifest.save_manifest(place)
    folder.write_json("data.json", {"folder": str(place), "key": manifest.key})
    return place


def look(rules: Preflight, folder: RunFolder) -> tuple[str, str]:
    found = checks.check_data(compose(), rules, folder, "node1")
    return found.verdict, found.found


def test_damaged_data_are_found(rules: Preflight, folder: RunFolder, place: Path) -> None:
    sizes_alone = rules.model_copy(update={"hashed_bytes": 0})
    said = "2 files by size, 2 of them by hash"
    assert look(rules, folder) == ("ok", said)
    text = bytearray((place / "b.model").read_bytes())
    text[7] ^= 1
    (place / "b.model").write_bytes(text)
    said = "was changed: its sha256 is not the manifest's"
    assert look(rules, folder) == ("bad", said)
    assert look(sizes_alone, folder)[0] == "ok"
    (place / "a.model").unlink()
    said = "is missing, but the manifest lists it"
    assert look(sizes_alone, folder) == ("bad", said)


def test_data_of_another_run_are_bad(rules: Preflight, folder: RunFolder, place: Path) -> None:
    folder.write_json("data.json", {"folder": str(place), "key": "j" * 64})
    said = "holds kkkkkkkkkkkk, the run has jjjjjjjjjjjj"
    assert look(rules, folder) == ("bad", said)


@pytest.mark.usefixtures("place")
def test_missing_initial_weights_are_bad(rules, folder: RunFolder, tmp_path: Path) -> None:
    recipe = compose(f"model.init_from={tmp_path / 'gone'}")
    found = checks.check_data(recipe, rules, folder, "node1")
    assert (found.verdict, found.rule) == ("bad", "model.init_from")
    assert found.found.endswith("gone is not to be seen from this node")


def test_unprepared_data_are_unknown(rules: Preflight, folder: RunFolder) -> None:
    assert look(rules, folder) == ("unknown", "not prepared")


def test_nodes_hash_different_files() -> None:
    files = [FileRecord(name=str(number), sha256="", bytes=10) for number in range(100)]
    chosen = [list(checks.some_files(files, 35, f"node{number}")) for number in range(50)]
    assert all(len(some) == 3 for some in chosen)
    assert len({one.name for some in chosen for one in some}) > 50
