"""A run that comes from another has its checkpoint before its job waits in the queue."""

import contextlib
import shutil
from pathlib import Path

import pytest

from command.main import main
from components.checkpoint.choice import check_alone
from components.run.history import read_lines
from tests.cluster.conftest import HERE
from tests.cluster.programs import Programs
from tests.life.conftest import TINY, Program, home, program

__all__ = ["home", "program"]  # fixtures
SHORT = [word for word in TINY if not word.startswith(("budget.total", "checkpoint."))]
WORDS = (*SHORT, "checkpoint.every_tokens=1_024")


@pytest.mark.long
def test_branch_has_its_checkpoint_before_its_job_and_can_go_back_to_it(
    home: Path, program: Program, taking: Programs, tmp_path: Path
) -> None:
    program(*WORDS, "run=trunk", "budget.total_tokens=2_048")
    run, branch = tmp_path / "run", ("from.run=trunk", "from.with=optimizer")
    words = [*WORDS, *HERE, f"run={run}", "budget.total_tokens=3_072", *branch]
    with contextlib.chdir(home):
        assert main([*words, "action=submit", "from.at_tokens=1_500"]) == 2  # 1_536: none
        assert not run.exists()
        assert main([*words, "action=submit"]) == 0
    first, later = (run / "checkpoints" / f"tokens-{n:015d}" for n in (2_048, 2_560))
    check_alone(first)
    assert [one["kind"] for one in read_lines(run / "events.jsonl")] == ["branch"]
    shutil.rmtree(first)
    assert main(["action=cancel", f"run={run}"]) == 0
    with contextlib.chdir(home):
        assert main([*words, "action=submit", "again=true"]) == 0
    check_alone(first)
    shutil.copytree(first, later)
    (run / "results.json").write_text('{"status": "finished"}')
    back = (f"resume={run}", *(word for word in HERE if word.startswith("site.")))
    assert main([*back, "at_tokens=1_024"]) == 2  # there is none
    assert later.exists()
    assert main([*back, "at_tokens=2_048"]) == 0
    assert (later.parent / "left" / later.name).exists()
    assert not later.exists()
    assert not (run / "results.json").exists()
    assert read_lines(run / "events.jsonl")[-1]["kind"] == "rewind"
