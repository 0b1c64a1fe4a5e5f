"""What lies below the range is refused before anything else, what lies above is told."""

import ast
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from components import versions

ROOT = Path(__file__).resolve().parents[2]
OLD_PYTHONS = ("3.6", "3.8", "3.10")


def with_torch(version: str, folder: Path) -> dict[str, str]:
    """Let another torch be installed, by what pip would write of it."""
    written = folder / f"torch-{version}.dist-info"
    written.mkdir()
    said = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
    (written / "METADATA").write_text(said)
    return os.environ | {"PYTHONPATH": str(folder)}


def run(
    *words: str, env: dict[str, str] | None = None, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("version", "side"),
    [
        ("2.9.1", "below"), ("1.13.0", "below"), ("2.10.0a0+git449b176", "tried"),
        ("2.15.0+cpu", "tried"), ("2.16.0.dev20270101", "above"), ("3.0.0", "above"),
    ],
)  # fmt: skip
def test_a_build_counts_as_its_release(version: str, side: str) -> None:
    assert versions.compare_version(version, versions.TORCH) == side


def test_tested_and_absent_versions_cause_no_message(monkeypatch) -> None:
    assert versions.list_outside_range("below") == versions.list_outside_range("above") == []
    versions.refuse_old_versions()
    without_torch = {versions.PYTHON: platform.python_version()}
    monkeypatch.setattr(versions, "read_installed_versions", lambda: without_torch)
    versions.refuse_old_versions()


def test_a_torch_below_the_range_ends_every_command_with_one_message(tmp_path: Path) -> None:
    done = run("run.py", "recipe=teuken7b", "action=show", env=with_torch("2.9.1", tmp_path))
    assert done.returncode == 2
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first == f"torch 2.9.1 is installed; tested versions: {versions.TORCH}"
    assert "make setup" in second


def test_the_module_checks_versions_for_an_installer(tmp_path: Path) -> None:
    done = run("-m", "components.versions", env=with_torch("2.4.0+cu121", tmp_path))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 2)
    assert run("-m", "components.versions").returncode == 0


def test_a_torch_above_the_range_is_reported_and_accepted(tmp_path: Path, monkeypatch) -> None:
    with_torch("9.1.0", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    said = [f"torch 9.1.0 is installed; tested versions: {versions.TORCH}"]
    assert versions.list_outside_range("above") == said
    versions.refuse_old_versions()


def test_an_older_python_is_refused(monkeypatch, capsys) -> None:
    monkeypatch.setattr(platform, "python_version", lambda: "3.10.13")
    with pytest.raises(SystemExit) as ended:
        versions.refuse_old_versions()
    assert ended.value.code == 2
    said = f"Python 3.10.13 is installed; tested versions: {versions.PYTHON}\n"
    assert capsys.readouterr().err.startswith(said)


def test_python_3_6_can_read_what_refuses_it() -> None:
    names = (f"components/{name}.py" for name in ("child_process", "versions", "__init__"))
    for name in ("run.py", *names):
        ast.parse((ROOT / name).read_text("utf-8"), feature_version=(3, 6))


@pytest.mark.parametrize("python", OLD_PYTHONS)
def test_an_older_interpreter_prints_the_message(python: str) -> None:
    program = shutil.which(f"python{python}")
    if program is None or subprocess.run([program, "-V"], check=False).returncode:
        pytest.skip(f"python{python} is not installed")
    done = run("run.py", python=program)
    assert done.returncode == 2
    assert done.stderr.startswith(f"Python {python}.")


@pytest.mark.long
def test_training_prints_that_a_later_torch_is_untested(tmp_path: Path) -> None:
    env = with_torch("9.1.0", tmp_path) | {"XDG_STATE_HOME": str(tmp_path)}
    # Weights that are not there end it before anything is written.
    words = ("recipe=teuken7b", f"model.init_from={tmp_path}", f"run={tmp_path / 'run'}")
    done = run("run.py", *words, env=env)
    said = done.stderr.splitlines()
    assert said[0] == f"torch 9.1.0 is installed; tested versions: {versions.TORCH}"
    assert "config.json" in said[1]
    assert done.returncode == 2
