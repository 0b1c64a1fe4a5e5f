"""A stage of the last commit, installed and trained from where there is no network at all."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.staging import RECORD, close_stage, copy_tree, open_stage
from components.errors import RecipeError
from tests.cluster.jobs import ROOT

WORDS = ("recipe=teuken7b", "budget.total_tokens=20480", "cluster.ranks=1")
# What a network namespace begins with is a loopback interface that is down.
LOOPBACK_UP = """import fcntl, socket, struct
lo = struct.pack("16sh14x", b"lo", 0x1 | 0x40)
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, lo)
"""
OFFLINE = ("unshare", "--net", "--map-root-user")
HAS_NAMESPACES = (
    shutil.which("unshare") is not None
    and subprocess.run([*OFFLINE, "true"], capture_output=True, check=False).returncode == 0
)


def call(*command: str, cwd: Path) -> str:
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    steps: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [step["loss"] for step in steps if step["kind"] == "step"]


@pytest.mark.long
@pytest.mark.cluster  # three minutes of installing: make cluster has it
@pytest.mark.skipif(not HAS_NAMESPACES, reason="no network namespace can be made here")
@pytest.mark.timeout(3_600)
def test_what_is_staged_trains_where_only_the_loopback_is(tmp_path: Path) -> None:
    clone, home, stage = (tmp_path / name for name in ("clone", "home", "made.stage"))
    call("git", "clone", "--quiet", str(ROOT), str(clone), cwd=tmp_path)
    run_py = (sys.executable, str(clone / "run.py"), *WORDS)
    call(*run_py, "action=prepare", "stage=true", f"file={stage}", cwd=tmp_path)
    call(*run_py, f"run={tmp_path / 'here'}", cwd=tmp_path)
    script = tmp_path / "offline.sh"
    script.write_text(
        f"set -e\n{sys.executable} - <<'END'\n{LOOPBACK_UP}END\n"
        f"! timeout 5 {sys.executable} -c 'import socket; "
        'socket.create_connection(("9.9.9.9", 53), 3)\' 2> /dev/null\n'
        f"PYTHON={sys.executable} bash {stage}/install.sh {home}\n"
        f"cd {home}\n.venv/bin/python run.py {' '.join(WORDS)} run=there\n",
        "utf-8",
    )
    call(*OFFLINE, "bash", str(script), cwd=tmp_path)
    assert len(losses(tmp_path / "here")) > 1
    assert losses(home / "there") == losses(tmp_path / "here")


def test_a_stage_is_whole_or_has_no_record(tmp_path: Path) -> None:
    stage, data = tmp_path / "x.stage", tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "tokens").write_bytes(b"12345")
    open_stage(stage)
    copy_tree(data, stage / "prepared")
    close_stage(stage, {"recipe": "x"})
    call("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=stage)
    assert (
        json.loads((stage / RECORD).read_text())["files"][0]["name"] == "prepared/deep/tokens"
    )
    open_stage(stage)  # whoever goes on begins by taking the record away
    assert not (stage / RECORD).exists()
    (stage / "prepared" / "deep" / "tokens").unlink()
    (stage / "prepared" / "deep" / "tokens").write_bytes(b"1")  # half of it
    copy_tree(data, stage / "prepared")
    assert (stage / "prepared" / "deep" / "tokens").read_bytes() == b"12345"


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RecipeError, match=r"contains thesis.tex and is not a stage"):
        open_stage(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecipeError, match=r"file: cannot write .*\n  use another"):
        open_stage(tmp_path / "file" / "x.stage")
