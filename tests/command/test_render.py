"""``action=render`` as a user meets it: streams, files, exit statuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command.actions.jobs.render import run
from command.arguments import read_point
from command.perform import run_action
from components.errors import RecipeError

ROOT = Path(__file__).resolve().parents[2]


def call(
    *words: str, cwd: Path, flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, *flags, str(ROOT / "run.py"), "action=render", *words]
    environment = os.environ | {"XDG_CONFIG_HOME": str(cwd)}
    return subprocess.run(program, cwd=cwd, env=environment, capture_output=True, text=True)


def test_the_script_is_printed_and_what_is_missing_is_said_beside(tmp_path: Path) -> None:
    done = call("recipe=teuken7b", "cluster=juwels", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=teuken7b\n")
    assert "--account=<account>" in done.stdout
    assert "missing: site.account: not set" in done.stderr
    assert f"{tmp_path}/kochbuch/site.yaml" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_this_machine_has_no_job_script(tmp_path: Path) -> None:
    done = call("recipe=teuken7b", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cluster: local has no scheduler" in done.stderr
    assert "set cluster=juwels, or train here with action=train" in done.stderr


@pytest.mark.parametrize("path", ["a" * 256, "ü" * 128, "/".join(["b" * 200] * 25)])
def test_a_run_whose_path_no_file_system_takes_is_refused(path: str) -> None:
    words = ["recipe=teuken7b", "cluster=juwels", f"run={path}"]
    with pytest.raises(RecipeError, match=r"run: .*: too long\n  use a shorter path"):
        run(read_point(words))


def test_a_file_is_written_where_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "recipe=bloom176b",
        "cluster=jean_zay",
        f"file={tmp_path}/job.sh",
        "site.account=a",
    ]
    assert run_action("render", read_point(words)).status == 0
    assert capsys.readouterr() == (f"{tmp_path}/job.sh\n", "")
    assert "--account=a@a100" in (tmp_path / "job.sh").read_text("utf-8")


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    words = ("recipe=bloom176b", "cluster=jean_zay", f"file={tmp_path}/no/job.sh")
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert f"file: cannot write {tmp_path}/no/job.sh" in done.stderr


def test_a_note_says_what_the_plan_does_not_know(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    run(read_point(["recipe=lucie_7b", "cluster=jean_zay_h100", "site.account=a"]))
    assert capsys.readouterr().err.startswith("note: cluster.jobs: the plan lacks measurements")
