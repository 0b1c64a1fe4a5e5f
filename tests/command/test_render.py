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


WORDS = ("recipe=teuken7b", "cluster=juwels")


def test_render_prints_the_script_and_missing_settings_to_stderr(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), "action=render", *WORDS],
        cwd=tmp_path,
        env=os.environ | {"XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=teuken7b\n")
    assert "--account=<account>" in done.stdout
    assert "missing: site.account: not set" in done.stderr
    assert f"{tmp_path}/kochbuch/site.yaml" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("recipe=teuken7b",), "cluster: local has no scheduler, so it cannot run"),
        ((*WORDS, "file=no/job.sh"), "file: cannot write no/job.sh"),
        ((*WORDS, "file=./pipe"), "file: pipe is not a regular file"),
    ],
)
def test_no_script_without_place(words: tuple[str, ...], said: str, folder: Path) -> None:
    os.mkfifo("pipe")
    with pytest.raises(RecipeError) as caught:
        run(read_point(words))
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("path", ["a" * 256, "ü" * 128, "/".join(["b" * 200] * 25)])
def test_a_run_path_that_no_file_system_accepts_is_refused(path: str) -> None:
    words = ["recipe=teuken7b", "cluster=juwels", f"run={path}"]
    with pytest.raises(RecipeError, match=r"run: .*: too long\n  use a shorter path"):
        run(read_point(words))


def test_script_is_written_to_file(tmp_path, capsys, monkeypatch):
    words = ("recipe=bloom176b", "cluster=jean_zay", "site.account=a")
    assert run_action("render", read_point([*words, f"file={tmp_path}/job.sh"])).status == 0
    assert capsys.readouterr() == (f"{tmp_path}/job.sh\n", "")
    assert "--account=a@a100" in (tmp_path / "job.sh").read_text("utf-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    run(read_point(["recipe=lucie_7b", "cluster=jean_zay_h100", "site.account=a"]))
    assert capsys.readouterr().err.startswith("note: cluster.jobs: the plan lacks measurements")
