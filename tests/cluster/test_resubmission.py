"""A run is submitted again after its chain has ended. A branch finds its trunk's checkpoint."""

import contextlib
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from cluster.chain import SubmitEvent
from cluster.records import Jobs, utc_now
from cluster.slurm import Slurm
from cluster.status import status_of
from command.main import main
from components.checkpoint.choice import check_alone
from components.run.folder import RunFolder
from components.run.history import read_lines
from components.run.ownership import seal_of
from tests.cluster.conftest import HERE, Submit
from tests.cluster.jobs import began, ended
from tests.cluster.programs import Capture, Patch, Programs, queued
from tests.life.conftest import TINY, Program, command, environment, home, program

NEW = (
    *("cluster.hours=12", "cluster.jobs=3", "guard.non_finite.most=9", "checkpoint.keep=7"),
    *("watchdog.restarts=2", "evaluation.every_tokens=3_072", "tracking=wandb"),
    "cluster.site.environment.NCCL_DEBUG={value: INFO, reason: a hang}",
    "cluster.site.modules=[load NCCL]",
    "cluster.site.account_suffix='@new'",
)
CHANGED = {word.partition("=")[0] for word in NEW}


def recipe_in(run: Path) -> dict[str, object]:
    tree: dict[str, object] = json.loads((run / "recipe.json").read_text())
    return tree


@pytest.fixture
def run(submit: Submit, taking: Programs, tmp_path: Path) -> Path:
    """A run with one job, which has ended."""
    assert submit() == 0
    jobs = Jobs(RunFolder(tmp_path / "run"))
    ended(jobs, began(jobs, "77"), "stopped")
    return tmp_path / "run"


@pytest.mark.parametrize("by", ["recipe", "resume"])
def test_everything_but_the_mathematics_may_change(by, submit, run, taking, capfd):
    before = recipe_in(run)
    taking.add("sbatch", says="78\n")
    if by == "recipe":
        assert submit(*NEW, "again=true") == 0
    else:
        assert main([f"resume={run}", "site.account=other", *NEW]) == 0
    assert "cluster.hours: 0.5 -> 12" in capfd.readouterr().err
    account = "kitchen@new" if by == "recipe" else "other@new"
    lines = (run / "jobs" / "job.sh").read_text().splitlines()
    for line in (
        *("#SBATCH --time=12:00:00", "#SBATCH --array=1-3%1", f"#SBATCH --account={account}"),
        *("export NCCL_DEBUG=INFO  # a hang", "module load NCCL"),
    ):
        assert line in lines
    assert json.loads((run / "recipe-before-step-0.json").read_text()) == before
    assert recipe_in(run) != before
    assert main(["action=status", f"run={run}", "output=json"]) == 0
    changed = json.loads(capfd.readouterr().out)["changed"]["0"]
    assert changed["cluster.hours"] == [0.5, 12.0]
    assert changed["cluster.site.environment.NCCL_DEBUG.value"] == [None, "INFO"]
    assert {key for key in CHANGED if any(one.startswith(key) for one in changed)} == CHANGED
    assert main(["action=status", f"run={run}"]) == 0
    assert "cluster.hours: 0.5 -> 12.0" in " ".join(capfd.readouterr().out.split())


@pytest.mark.parametrize("by", ["recipe", "resume"])
def test_other_mathematics_is_refused_and_changes_nothing(by, submit, run, taking, capfd):
    before = {file: file.read_bytes() for file in run.rglob("*.json*")}
    if by == "recipe":
        assert submit("optimizer.lr=1e-5", "again=true") == 2
        assert "optimizer.lr" in capfd.readouterr().err
    else:
        for word in ("budget.seed", "cluster.hors"):
            assert main([f"resume={run}", "site.account=kitchen", f"{word}=7"]) == 2
            assert word in capfd.readouterr().err
    assert {file: file.read_bytes() for file in run.rglob("*.json*")} == before


@pytest.mark.parametrize("how", ["lost", "cancelled", "used", "left", "running", "unknown"])
def test_command_that_status_prints_is_accepted(how, submit, taking, tmp_path, capfd):
    run = tmp_path / "run"
    assert submit("cluster.jobs=1" if how == "used" else "cluster.jobs=2") == 0
    jobs = Jobs(RunFolder(run))
    if how == "unknown":
        jobs.append_events(SubmitEvent(at=utc_now(), words=jobs.load_chain().words, jobs=1))
    elif how == "cancelled":
        assert main(["action=cancel", f"run={run}"]) == 0
    elif how != "left":
        record = began(jobs, "77_1")
        if how == "used":
            ended(jobs, record, "stopped")
    if how == "running":
        taking.add("squeue", says=queued(jobs.path, "77_1|RUNNING|None|n1"))
    next_step = status_of(run, Slurm()).next
    taking.add("squeue")
    program, script, *words = shlex.split(next_step[next_step.index("python run.py") :])
    assert (program, script) == ("python", "run.py")
    taking.add("sbatch", says="78\n")
    capfd.readouterr()
    assert main([*words, "cluster.hours=12"]) == 0
    assert capfd.readouterr().out.startswith("submitted 78")


def test_run_of_another_user_writes_no_script(run, taking, capfd):
    seal_of(run / "recipe.json").unlink()
    calls = len(taking.calls())
    assert main([f"resume={run}", "data.sources.eu.files=[]", "site.account=kitchen"]) == 2
    assert main([f"resume={run}", "site.account=kitchen", f"data.folder={run}"]) == 2
    assert "was received" in capfd.readouterr().err
    assert not any(call.startswith("sbatch") for call in taking.calls()[calls:])
    assert "run=" in status_of(run, Slurm()).next
    assert "again=true" in status_of(run, Slurm()).next


def test_job_with_a_lost_answer_is_found_by_where_it_writes(run, submit, taking, capfd):
    jobs = Jobs(RunFolder(run))
    jobs.append_events(SubmitEvent(at=utc_now(), jobs=1))
    others = queued(run.parent / "other" / "jobs", "99|RUNNING|None|n2")
    taking.add("squeue", says=others + queued(jobs.path, "78|PENDING|Priority|"))
    assert [job.job for job in status_of(run, Slurm()).queued or ()] == ["78"]
    assert submit("again=true") == 2
    assert f"{run} is submitted: 78 pending" in capfd.readouterr().err
    assert main(["action=cancel", f"run={run}"]) == 0
    assert taking.calls()[-1] == "scancel --state=PENDING 78"
    lines = ("77_1|RUNNING|None|n1", "78_1|PENDING|Priority|", "78_2|PENDING|Dependency|")
    taking.add("squeue", says=queued(jobs.path, *lines))
    assert main(["action=cancel", f"run={run}", "force=true"]) == 0
    assert taking.calls()[-1] == "scancel 77 78"  # every chain that writes into the folder


def submitting(run: Path) -> "subprocess.Popen[str]":
    words = command(*TINY, *HERE, f"run={run}", "again=true")
    env, pipe = environment(), subprocess.PIPE
    return subprocess.Popen(words, env=env, text=True, stdout=pipe, stderr=pipe)


@pytest.mark.long
@pytest.mark.parametrize("begun", [True, False])
def test_one_of_two_commands_at_once_submits(begun: bool, run: Path, taking: Programs) -> None:
    if not begun:
        shutil.rmtree(run)
    line = queued(run / "jobs", "78|PENDING|Priority|")
    mark = run.parent / "submitted"
    taking.script("sbatch", f"sleep 3; touch {mark}; echo 78")
    taking.script("squeue", f"[ ! -e {mark} ] || echo '{line.strip()}'")
    both = [submitting(run) for _ in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], said
    assert any(f"{run} is submitted: 78 pending" in error for _, error in said)
    count = sum(call.startswith("sbatch") for call in taking.calls())
    assert count == 2  # one is that of the fixture


def test_run_moves_here_from_a_cluster_that_is_not_reachable(
    run: Path, submit: Submit, taking: Programs, monkeypatch: Patch, capfd: Capture
) -> None:
    (taking.folder / "sbatch").unlink()
    taking.add("qsub", says="5.pbs-0001\n")
    words = ["cluster=aurora", "cluster.devices_per_node=1", "site.queue=debug"]
    monkeypatch.setenv("PATH", str(taking.folder))
    assert submit(*words) == 2
    assert "sbatch is not found" in capfd.readouterr().err
    assert submit(*words, "again=true") == 0
    assert Jobs(RunFolder(run)).load_chain().job_ids == ["5.pbs-0001"]


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
