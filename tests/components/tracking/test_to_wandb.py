"""What W&B's own program reads in the folder and uploads, against the lines of a run."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from components.config.schema.monitoring import Wandb
from components.errors import RecipeError
from components.report.outcome import flatten_tree
from components.run.folder import existing_run_folder
from components.tracking import to_wandb
from components.tracking.run_export import RunExport, read_run_export
from tests.cluster.staging.test_install import HAS_NAMESPACES, OFFLINE
from tests.components.tracking import runs
from tests.components.tracking.fake_wandb import Received, wandb_server
from tests.components.tracking.runs import AGAIN, START, STEPS, points_of, write_run

pytestmark = [
    pytest.mark.long,  # seconds of imports
    pytest.mark.skipif(  # the package is optional
        find_spec("wandb") is None, reason="W&B is not installed: requirements/tracking.lock"
    ),
]
SECTION = Wandb(project="cakes", entity="me", tags=("a tag",))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep this user's own keys and settings out."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_X_GRAPHQL_RETRY_MAX", "0")


def write(folder: Path, lines: list[runs.Line]) -> tuple[RunExport, Path]:
    run_export = read_run_export(write_run(folder, lines))
    return run_export, to_wandb.write_offline_run(run_export, SECTION, folder)


def received_points(server: Received, run: str) -> runs.Points:
    return {
        (key, row["_step"], value)
        for row in server.history[run]
        for key, value in row.items()
        if not key.startswith("_")
    }


def test_a_second_wandb_sync_replaces_the_first(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "run"
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        told, written = write(folder, [*START, *STEPS])
        to_wandb.upload_offline_run(written)
        assert received_points(server, told.id) == points_of([*START, *STEPS])
        assert [row["_timestamp"] for row in server.history[told.id]] == [1, 2, 3, 4, 5, 6]
        _, again = write(folder, [*START, *STEPS, *AGAIN])
        to_wandb.upload_offline_run(again)
    assert [file.parent for file in folder.glob("wandb/offline-run-*/*.wandb")] == [again]
    kept = [*START, *STEPS[:3], *AGAIN]
    assert received_points(server, told.id) == points_of(kept)
    assert [row["_step"] for row in server.history[told.id]] == [0, 1, 2, 3, 4, 5]
    _check_said(server.upserts[0], told)


def _check_said(upsert: dict[str, Any], told: RunExport) -> None:
    assert (upsert["name"], upsert["project"], upsert["entity"]) == (told.id, "cakes", "me")
    assert upsert["displayName"] == "run"
    fingerprint = told.facts["fingerprint"][:12]
    wanted = {"teuken7b", "mini", "local", f"fingerprint-{fingerprint}", "commit-0123abc"}
    assert set(upsert["tags"]) == {*wanted, "a tag"}
    config = {key: one["value"] for key, one in json.loads(upsert["config"]).items()}
    assert config.pop("kochbuch") == dict(told.facts)
    del config["_wandb"]
    # W&B drops mappings without keys.
    assert flatten_tree(config) == {
        key: one for key, one in flatten_tree(told.recipe).items() if one != {}
    }


def test_links_to_the_wandb_cache_are_accepted_in_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _, written = write(folder, [*START, *STEPS])
    links = [file for file in written.rglob("*") if file.is_symlink()]
    assert any(not file.resolve().is_relative_to(folder) for file in links)
    assert existing_run_folder(folder, "resume").path == folder


def test_other_runs_in_wandb_dir_are_unchanged(tmp_path: Path, monkeypatch) -> None:
    own = tmp_path / "mine"
    other = own / "wandb" / "offline-run-20260101_000000-other"
    other.mkdir(parents=True)
    monkeypatch.setenv("WANDB_DIR", str(own))
    told, first = write(tmp_path / "run", [*START, *STEPS])
    _, second = write(tmp_path / "run", [*START, *STEPS, *AGAIN])
    assert not (tmp_path / "run" / "wandb").exists()
    assert {*own.glob("wandb/offline-run-*")} == {other, second}
    assert first.parent == second.parent
    assert second.name.endswith(told.id)


def run_python(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """W&B reads its settings once in a process."""
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_a_mode_without_upload_is_obeyed(tmp_path: Path, monkeypatch, mode: str) -> None:
    folder = write_run(tmp_path / "run", [*START, *STEPS])
    monkeypatch.setenv("WANDB_MODE", mode)
    program = "import sys; from command.main import main; sys.exit(main(sys.argv[1:]))"
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        words = ("action=report", "sync=true", f"run={folder}", "tracking=wandb")
        ended = run_python(program, *words)
        assert server.upserts == []
    assert ended.returncode == 0, ended.stderr
    said = "WANDB_MODE disables it" if mode == "disabled" else "is offline; run wandb sync"
    assert said in ended.stdout
    assert (folder / "wandb").exists() == (mode != "disabled")


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("online", "online\n"),
        (None, "online\n"),
        ("dryrun", "offline\n"),
        ("nonsense", "RecipeError: tracking.wandb: .*\n.*set WANDB_MODE to online, offline or"),
    ],
)
def test_the_environment_sets_the_mode(monkeypatch, mode: str | None, said: str) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("WANDB_MODE", mode)
    program = "from components.tracking.to_wandb import upload_mode; print(upload_mode())"
    ended = run_python(program)
    assert re.search(said, ended.stdout + ended.stderr)
    assert (ended.stdout == said) == (mode != "nonsense")


@pytest.mark.skipif(not HAS_NAMESPACES, reason="no network namespace can be made here")
def test_an_offline_run_is_written_without_a_network(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [*START, *STEPS])
    program = (
        "from pathlib import Path; from components.config.schema.monitoring import Wandb\n"
        "from components.tracking import run_export, to_wandb\n"
        f"place = Path({str(folder)!r}); section = Wandb(project='x', entity=None, tags=())\n"
        "to_wandb.write_offline_run(run_export.read_run_export(place), section, place)\n"
    )
    command = [*OFFLINE, sys.executable, "-c", program]
    subprocess.run(command, check=True, capture_output=True)
    assert len(list((folder / "wandb").glob("offline-run-*/run-*.wandb"))) == 1


def test_a_missing_login_is_reported(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    _, written = write(tmp_path / "run", [*START, *STEPS])
    with pytest.raises(RecipeError, match=r"tracking\.wandb: W&B did not .*\n.*wandb login"):
        to_wandb.upload_offline_run(written)
    said = capfd.readouterr()
    assert "No API key configured" in said.err
    assert said.out == ""


def test_a_refused_upload_is_an_error(tmp_path: Path, monkeypatch, capfd) -> None:
    _, written = write(tmp_path / "run", [*START, *STEPS])
    with wandb_server(status=404) as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        with pytest.raises(RecipeError, match=r"did not receive .*\n.*wandb sync there"):
            to_wandb.upload_offline_run(written)
    assert "not for you" in capfd.readouterr().err
