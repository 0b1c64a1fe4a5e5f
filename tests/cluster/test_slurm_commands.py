"""Submit, status and cancel as a user meets them: what they refuse, and what they do."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster import scheduler_command
from cluster.chain import ExcludedEvent
from cluster.decisions import avoided_until
from cluster.records import Jobs, utc_now
from cluster.slurm import Slurm
from cluster.status import status_of
from command.main import main
from components.command_line import RUN
from components.run.folder import RunFolder
from tests.cluster.conftest import Submit
from tests.cluster.programs import Programs, queued
from tests.cluster.slurm import LocalSlurm

FULL = ("recipe=teuken7b", "cluster=juwels", "action=submit", "site.account=kitchen")
LOST = ("submitted as 77, and has ended: cancelled", "again=true submits the run again")


def test_without_the_scheduler_the_script_is_written_and_its_place_told(
    submit: Submit,
    programs: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(programs.folder))
    assert submit() == 2
    script = tmp_path / "run" / "jobs" / "job.sh"
    said = capfd.readouterr().err
    assert "cluster.scheduler: sbatch is not found; Slurm is not available here" in said
    assert (
        f"run this on a login node of the cluster; submit the job script with: sbatch {script}"
        in said
    )
    assert script.read_text().startswith("#!/bin/bash\n#SBATCH --job-name=teuken7b\n")
    assert Jobs(RunFolder(tmp_path / "run")).load_chain().submissions == ()


def test_what_is_handed_over_is_noted_and_told(
    submit: Submit, taking: Programs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    taking.add("sbatch", says="77;juwels\n")  # as in a federation
    assert submit("cluster.jobs=3") == 0
    run = tmp_path / "run"
    said = capfd.readouterr()
    assert said.out.splitlines() == [
        "submitted 77: a chain of at most 3 jobs of 2 nodes for 00:30:00",
        f"script: {run}/jobs/job.sh",
        f"run: {run}",
        f"next: python {RUN} action=status run={run}",
    ]
    assert "for a short test on two nodes, add cluster.smoke=true" in said.err
    script = run / "jobs" / "job.sh"
    assert taking.calls() == [f"sbatch --parsable {script}"]
    chain = Jobs(RunFolder(run)).load_chain()
    assert chain.submissions == (("77", 3),)
    assert "cluster.jobs=3" in chain.words
    assert {file.name for file in run.iterdir()} >= {
        *("recipe.json", "derived.json", "data.json", "environment.json", "jobs", "ranks"),
    }


def test_what_the_scheduler_refuses_is_told_with_the_way_out(
    submit: Submit, taking: Programs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    taking.add("sbatch", error="allocation failure: Invalid account\n", status=1)
    assert submit() == 2
    said = capfd.readouterr().err
    assert "cluster.scheduler: sbatch: allocation failure: Invalid account" in said
    assert f"the rejected script is {tmp_path}/run/jobs/job.sh" in said
    taking.add("sbatch", says="77\n")
    assert submit() == 0  # nothing stands in the way of a second try


def test_what_the_scheduler_does_not_answer_to_is_no_refusal(
    submit: Submit,
    taking: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It may have taken the job: the next submission asks a person first."""
    monkeypatch.setattr(scheduler_command, "ANSWERS_WITHIN_SECONDS", 0.5)
    taking.script("sbatch", "exec sleep 20")
    assert submit() == 2
    said = capfd.readouterr().err
    assert "cluster.scheduler: sbatch: no answer within 0.5 s" in said
    assert f"teuken7b may be queued: check action=status run={tmp_path / 'run'}" in said
    taking.add("sbatch", says="78\n")
    assert submit() == 2
    assert "again=true submits the run again" in capfd.readouterr().err
    assert submit("again=true") == 0
    assert Jobs(RunFolder(tmp_path / "run")).load_chain().job_ids == ["78"]


def test_what_waits_or_runs_is_not_handed_over_twice(
    submit: Submit, taking: Programs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert submit() == 0
    taking.add("squeue", says=queued(tmp_path / "run" / "jobs", "77|RUNNING|None|n[1-2]"))
    assert submit("again=true") == 2
    said = capfd.readouterr().err
    assert f"run: {tmp_path}/run is submitted: 77 running" in said
    assert "to cancel the run: action=cancel" in said


def test_what_has_ended_is_handed_over_again_only_if_asked_for(
    submit: Submit, taking: Programs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert submit() == 0
    assert main(["action=cancel", f"run={tmp_path / 'run'}"]) == 0
    assert Jobs(RunFolder(tmp_path / "run")).load_chain().cancelled
    assert submit() == 2
    said = capfd.readouterr().err
    assert all(part in said for part in LOST)
    taking.add("sbatch", says="78\n")
    assert submit("again=true") == 0
    jobs = Jobs(RunFolder(tmp_path / "run"))
    assert [chain for chain, _ in jobs.load_chain().submissions] == ["77", "78"]
    assert not jobs.load_chain().cancelled


def test_a_finished_run_is_not_handed_over_again(
    submit: Submit, taking: Programs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert submit() == 0
    RunFolder(tmp_path / "run").write_json("results.json", {"status": "finished"})
    assert submit("again=true") == 2
    said = capfd.readouterr().err
    assert f"run: the run in {tmp_path}/run has finished\n  choose another run=FOLDER" in said


def test_where_the_scheduler_does_not_answer_nothing_is_handed_over(
    submit: Submit, taking: Programs, capfd: pytest.CaptureFixture[str]
) -> None:
    assert submit() == 0
    taking.add("squeue", error="Unable to contact slurm controller", status=1)
    assert submit("again=true") == 2
    said = capfd.readouterr().err
    assert "cluster.scheduler: squeue: Unable to contact slurm controller" in said
    assert "try again later" in said


def test_another_recipe_does_not_get_into_the_folder(
    submit: Submit, taking: Programs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert submit() == 0
    assert submit("optimizer.lr=1e-5", "again=true") == 2
    assert f"run: {tmp_path}/run has a different recipe" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("again=1",), "again: input should be a valid boolean, got 1\n  write again=true"),
        (("force=yes_please",), "force: input should be a valid boolean, got 'yes_please'"),
        (("at_most=0",), "at_most: input should be greater than 0, got 0"),
        (("at_most=true",), "at_most: input should be a valid integer, got True"),
        (("site.device_hours=0",), "site.device_hours: expected a number of hours"),
        (("site.device_hours=10",), "site.device_hours: 10, but the plan needs "),
        (("site.device_hours=10",), "lower budget.total_tokens, or raise site.device_hours"),
        (("site.account=a b",), "'a b' is not allowed in a job script"),
        (
            ("cluster.hours=30",),
            "cluster.hours: 30, but booster allow at most 24",
        ),
    ],
)
def test_what_a_login_node_can_refuse_it_refuses(
    words: tuple[str, ...],
    message: str,
    taking: Programs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    account = FULL if not words[0].startswith("site.account") else FULL[:-1]
    assert main([*account, f"run={tmp_path / 'run'}", *words]) == 2
    assert message in capfd.readouterr().err
    assert taking.calls() == []
    assert not (tmp_path / "run").exists()


def test_without_an_account_the_file_and_its_line_are_told(
    taking: Programs, site_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(FULL[:-1]) == 2
    said = capfd.readouterr().err
    assert "site.account: not set, and juwels requires an account for every job" in said
    assert f"add to {site_file}:" in said


@pytest.mark.parametrize(
    "word",
    ["parallelism.zero=0", "cluster.hardware.usable_bytes=24_600_000_000"],
    ids=["does not fit", "tight, above the limit"],
)
def test_a_peak_above_the_memory_is_refused_unless_forced(
    taking: Programs, tmp_path: Path, capfd: pytest.CaptureFixture[str], word: str
) -> None:
    words = [*FULL, word, f"run={tmp_path / 'run'}"]
    assert main(words) == 2
    said = capfd.readouterr().err
    assert "parallelism: the plan needs " in said
    assert "(action=plan lists the memory), or set force=true" in said
    assert main([*words, "force=true"]) == 2
    said = capfd.readouterr().err
    assert "parallelism: " not in said
    assert "this source has no text files" in said  # the next check


def test_where_there_is_no_scheduler_nothing_is_submitted(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["recipe=teuken7b", "action=submit"]) == 2
    assert "local has no scheduler" in capfd.readouterr().err


def test_cancel_knows_only_what_was_submitted(
    taking: Programs, run_on: Callable[..., Jobs], capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_on("juwels").folder.path
    assert main(["action=cancel", f"run={run.parent / 'nowhere'}"]) == 2
    assert "nowhere is not a run folder: it does not exist" in capfd.readouterr().err
    assert main(["action=cancel", f"run={run}"]) == 2
    said = capfd.readouterr().err
    assert (
        f"run: {run} was never submitted\n  press Ctrl-C to stop a run in this terminal" in said
    )


@pytest.mark.parametrize(
    ("force", "words", "said"),
    [
        ("false", "--state=PENDING 77", "saves after the current step"),
        ("true", "77", "cancelled"),
    ],
)
def test_cancel_lets_the_running_job_save_unless_forced(
    force: str,
    words: str,
    said: str,
    submit: Submit,
    taking: Programs,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert submit() == 0
    lines = ("77_1|RUNNING|None|n1", "77_2|PENDING|JobArrayTaskLimit|")
    taking.add("squeue", says=queued(tmp_path / "run" / "jobs", *lines))
    capfd.readouterr()
    assert main(["action=cancel", f"force={force}", f"run={tmp_path / 'run'}"]) == 0
    running, waiting = capfd.readouterr().out.splitlines()
    assert running.startswith(f"77_1: {said}")
    assert waiting == "77_2: cancelled"
    assert taking.calls()[-1] == f"scancel {words}"
    assert (tmp_path / "run" / "stop").exists() == (force == "false")


def test_cancel_says_where_nothing_is_left_and_where_nobody_answers(
    submit: Submit, taking: Programs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert submit() == 0
    words = ["action=cancel", f"run={tmp_path / 'run'}"]
    assert main(words) == 0
    assert "77: no queued or running jobs" in capfd.readouterr().out
    taking.add("squeue", error="Unable to contact slurm controller", status=1)
    assert main(words) == 2
    said = capfd.readouterr().err
    assert "cluster.scheduler: squeue: Unable to contact slurm controller" in said
    assert "try again later" in said


def excludes_and_readmits(slurm: LocalSlurm, run: Path) -> None:
    """Two of three nodes are needed: one is drained, and a waiting chain avoids another."""
    jobs = Jobs(RunFolder(run))
    (chain,) = jobs.load_chain().job_ids
    drained, avoided, kept = slurm.nodes
    said = ("scontrol", "--oneliner", "show", "job", f"{chain}_2")
    assert Slurm().find_eligible_nodes(chain) == frozenset(slurm.nodes)
    assert Slurm().find_exit_reason(f"{chain}_2") == "put back"  # it waits
    assert Slurm().exclude_nodes(chain, jobs.path, [avoided], needed=2)
    jobs.append_events(
        ExcludedEvent(at=utc_now(), nodes=(avoided,), until=avoided_until(utc_now()))
    )
    assert f"ExcNodeList={avoided} " in slurm.call(*said)
    slurm.call("scontrol", "update", f"NodeName={drained}", "State=DRAIN", "Reason=test")
    try:
        assert Slurm().find_eligible_nodes(chain) == frozenset({avoided, kept})
        next_step = status_of(run, Slurm()).next
        assert next_step.startswith(f"avoids {avoided}, the first until ")
    finally:
        slurm.call("scontrol", "update", f"NodeName={drained}", "State=RESUME")
    assert main(["action=status", f"run={run}", "exclude=none"]) == 0
    assert avoided not in slurm.call(*said)


def test_a_real_slurm_takes_holds_and_gives_back(
    slurm: LocalSlurm,
    submit: Submit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    run = tmp_path / "run"
    slurm.call("scontrol", "update", "PartitionName=booster", "State=DOWN")
    try:
        assert submit("cluster.jobs=3") == 0
        slurm.wait_for(lambda: "PartitionDown" in status_of(run, Slurm()).why, 30)
        capfd.readouterr()
        assert main(["action=status", f"run={run}", "output=json"]) == 0
        shown = json.loads(capfd.readouterr().out)
        assert shown["state"] == "pending"
        assert shown["why"] == "PartitionDown"
        assert len(shown["queued"]) == 3
        excludes_and_readmits(slurm, run)
        assert submit("cluster.jobs=3") == 2
        assert " is submitted: " in capfd.readouterr().err
        assert main(["action=cancel", f"run={run}"]) == 0
        assert capfd.readouterr().out.count(": cancelled\n") == 3
        assert status_of(run, Slurm()).state == "cancelled"
        assert main(["action=cancel", f"run={run}"]) == 0
        assert "no queued or running jobs" in capfd.readouterr().out
        assert submit("cluster.jobs=3") == 2
        assert "again=true submits the run again" in capfd.readouterr().err
        assert submit("cluster.jobs=3", "again=true") == 0
        assert main(["action=cancel", "force=true", f"run={run}"]) == 0
        assert status_of(run, Slurm()).state == "cancelled"
    finally:
        slurm.call("scontrol", "update", "PartitionName=booster", "State=UP")


def test_a_job_that_submits_another_hands_nothing_of_itself_on(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.script("sbatch", f"env > {tmp_path}/seen\necho 78")
    own = {"SLURM_ARRAY_JOB_ID": "4", "SLURM_ARRAY_TASK_ID": "0", "SRUN_CPUS_PER_TASK": "8"}
    kept = {"SLURM_CONF": "/etc/conf", "TRITON_CACHE_DIR": "/own/cache"}
    cache = {"CUDA_CACHE_PATH": "/tmp/kochbuch-5/cache/CUDA_CACHE_PATH"}
    for name, value in (own | kept | cache).items():
        monkeypatch.setenv(name, value)

    def seen() -> set[str]:
        assert Slurm().submit_script(tmp_path / "job.sh", after=None) == "78"
        return {line.partition("=")[0] for line in (tmp_path / "seen").read_text().split("\n")}

    assert {*own, *kept, *cache} <= seen()  # a user's own words, on a login node
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    assert not {*own, *cache, "SLURM_JOB_ID"} & seen()
    assert {*kept, "PATH"} <= seen()
