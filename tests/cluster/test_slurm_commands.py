"""Submit, status and cancel: their effects and their errors."""

import json
from pathlib import Path

import pytest

from cluster import scheduler_command
from cluster.chain import ExcludedEvent
from cluster.decisions import avoided_until
from cluster.pbs import Pbs
from cluster.records import Jobs, utc_now
from cluster.scheduler import check_id, user_name
from cluster.slurm import Slurm
from cluster.status import status_of
from command.main import main
from components.command_line import RUN
from components.errors import RecipeError
from components.run.folder import RunFolder
from tests.cluster.conftest import Submit
from tests.cluster.jobs import Run, submitted
from tests.cluster.programs import Capture, Patch, Programs, queued
from tests.cluster.slurm import LocalSlurm

FULL = ("recipe=teuken7b", "cluster=juwels", "action=submit", "site.account=kitchen")
SILENT = "Unable to contact slurm controller"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_without_the_scheduler_the_script_is_written(run, submit, programs, monkeypatch, capfd):
    monkeypatch.setenv("PATH", str(programs.folder))
    assert submit() == 2
    script = run / "jobs" / "job.sh"
    stderr = capfd.readouterr().err
    assert "cluster.scheduler: sbatch is not found; Slurm is not available here" in stderr
    remedy = "run this on a login node of the cluster; submit the job script with: sbatch "
    assert f"{remedy}{script}" in stderr
    assert script.read_text().startswith("#!/bin/bash\n#SBATCH --job-name=teuken7b\n")
    assert Jobs(RunFolder(run)).load_chain().submissions == ()


def test_submission_is_reported(run, submit, taking, capfd):
    taking.add("sbatch", says="77;juwels\n")  # as in a federation
    assert submit("cluster.jobs=3") == 0
    said = capfd.readouterr()
    assert said.out.splitlines() == [
        "submitted 77: a chain of at most 3 jobs of 2 nodes for 00:30:00",
        f"script: {run}/jobs/job.sh",
        f"run: {run}",
        f"next: python {RUN} action=status run={run}",
    ]
    assert "for a short test on two nodes, add cluster.smoke=true" in said.err
    assert taking.calls() == [f"sbatch --parsable {run}/jobs/job.sh"]
    chain = Jobs(RunFolder(run)).load_chain()
    assert chain.submissions == (("77", 3),)
    assert "cluster.jobs=3" in chain.words
    written = {"recipe.json", "derived.json", "data.json", "environment.json", "jobs", "ranks"}
    assert {file.name for file in run.iterdir()} >= written


def test_rejected_script_is_named_and_can_be_submitted_with_other_settings(
    run: Path, submit: Submit, taking: Programs, capfd: Capture
) -> None:
    taking.add("sbatch", error="allocation failure: Invalid account\n", status=1)
    assert submit() == 2
    stderr = capfd.readouterr().err
    assert "cluster.scheduler: sbatch: allocation failure: Invalid account" in stderr
    assert f"the rejected script is {run}/jobs/job.sh" in stderr
    taking.add("sbatch", says="77\n")
    assert submit("cluster.hours=12") == 0  # nothing stands in the way of a second try
    assert "12:00:00" in (run / "jobs" / "job.sh").read_text()


def test_missing_answer_is_no_refusal(run, submit, taking, monkeypatch, capfd):
    """It may have taken the job: the next submission asks a person first."""
    monkeypatch.setattr(scheduler_command, "ANSWERS_WITHIN_SECONDS", 0.5)
    taking.script("sbatch", "exec sleep 20")
    assert submit() == 2
    stderr = capfd.readouterr().err
    assert "cluster.scheduler: sbatch: no answer within 0.5 s" in stderr
    assert f"teuken7b may be queued: check action=status run={run}" in stderr
    taking.add("sbatch", says="78\n")
    assert submit() == 2
    assert "again=true submits the run again" in capfd.readouterr().err
    assert submit("again=true") == 0
    assert Jobs(RunFolder(run)).load_chain().job_ids == ["78"]


def test_submits_only_once(run: Path, submit: Submit, taking: Programs, capfd: Capture) -> None:
    def check_refused(*messages: str, words: tuple[str, ...] = ("again=true",)) -> None:
        capfd.readouterr()
        assert submit(*words) == 2
        stderr = capfd.readouterr().err
        assert [message for message in messages if message not in stderr] == []

    assert submit() == 0
    taking.add("squeue", says=queued(run / "jobs", "77|RUNNING|None|n[1-2]"))
    check_refused(f"run: {run} is submitted: 77 running", "to cancel the run: action=cancel")
    taking.add("squeue", error=SILENT, status=1)
    check_refused(f"cluster.scheduler: squeue: {SILENT}", "try again later")
    taking.add("squeue")
    check_refused(f"run: {run} has a different recipe", words=("budget.seed=7", "again=true"))
    assert main(["action=cancel", f"run={run}"]) == 0
    assert Jobs(RunFolder(run)).load_chain().cancelled
    lost = "submitted as 77, and has ended: cancelled"
    check_refused(lost, "again=true submits the run again", words=())
    taking.add("sbatch", says="78\n")
    assert submit("again=true") == 0
    chain = Jobs(RunFolder(run)).load_chain()
    assert [job for job, _ in chain.submissions] == ["77", "78"]
    assert not chain.cancelled
    RunFolder(run).write_json("results.json", {"status": "finished"})
    check_refused(f"run: the run in {run} has finished\n  choose another run=FOLDER")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("again=1", "again: input should be a valid boolean, got 1\n  write again=true"),
        ("force=yes_please", "force: input should be a valid boolean, got 'yes_please'"),
        ("at_most=0", "at_most: input should be greater than 0, got 0"),
        ("at_most=true", "at_most: input should be a valid integer, got True"),
        ("site.device_hours=0", "site.device_hours: expected a number of hours"),
        ("site.device_hours=10", "lower budget.total_tokens, or raise site.device_hours"),
        ("site.account=a b", "'a b' is not allowed in a job script"),
    ],
)
def test_login_node_refuses_wrong_words(word, message, taking, run, monkeypatch, capfd):
    monkeypatch.chdir(run.parent)
    account = FULL if not word.startswith("site.account") else FULL[:-1]
    assert main([*account, f"run={run}", word]) == 2
    stderr = capfd.readouterr().err
    assert message in stderr
    assert word != "site.device_hours=10" or f"{word[:17]}: 10, but the plan needs " in stderr
    assert taking.calls() == []
    assert not run.exists()


def test_missing_account_is_reported(taking: Programs, site_file: Path, capfd: Capture) -> None:
    assert main(FULL[:-1]) == 2
    stderr = capfd.readouterr().err
    assert "site.account: not set, and juwels requires an account for every job" in stderr
    assert f"add to {site_file}:" in stderr


@pytest.mark.parametrize(
    "word",
    ["parallelism.zero=0", "cluster.hardware.usable_bytes=24_600_000_000"],
    ids=["does not fit", "tight, above the limit"],
)
def test_peak_above_memory_is_refused(taking, run, capfd, word):
    words = [*FULL, word, f"run={run}"]
    assert main(words) == 2
    stderr = capfd.readouterr().err
    assert "parallelism: the plan needs " in stderr
    assert "(action=plan lists the memory), or set force=true" in stderr
    assert main([*words, "force=true"]) == 2
    stderr = capfd.readouterr().err
    assert "parallelism: " not in stderr
    assert "this source has no text files" in stderr  # the next check


def test_cancel_needs_a_submission(taking, run_on, run, capfd):
    assert main(["action=cancel", f"run={run}"]) == 2
    assert "run is not a run folder: it does not exist" in capfd.readouterr().err
    run_on("juwels")
    assert main(["action=cancel", f"run={run}"]) == 2
    remedy = "press Ctrl-C to stop a run in this terminal"
    assert f"run: {run} was never submitted\n  {remedy}" in capfd.readouterr().err


def test_cancel_lets_the_running_job_save_unless_forced(run, submit, taking, capfd):
    def cancel(force, status=0):
        capfd.readouterr()
        assert main(["action=cancel", f"force={force}", f"run={run}"]) == status
        said = capfd.readouterr()
        return said.out + said.err

    assert submit() == 0
    assert "77: no queued or running jobs" in cancel("false")
    taking.add("squeue", error=SILENT, status=1)
    said = cancel("false", status=2)
    assert f"cluster.scheduler: squeue: {SILENT}" in said
    assert "try again later" in said
    lines = ("77_1|RUNNING|None|n1", "77_2|PENDING|JobArrayTaskLimit|")
    taking.add("squeue", says=queued(run / "jobs", *lines))
    (run / "stop").unlink(missing_ok=True)
    assert cancel("true") == "77_1: cancelled\n77_2: cancelled\n"
    assert taking.calls()[-1] == "scancel 77"
    assert not (run / "stop").exists()
    running, waiting = cancel("false").splitlines()
    assert running.startswith("77_1: saves after the current step")
    assert waiting == "77_2: cancelled"
    assert taking.calls()[-1] == "scancel --state=PENDING 77"
    assert (run / "stop").exists()


def excludes_and_readmits(slurm: LocalSlurm, run: Path) -> None:
    """Two of three nodes are needed: one is drained, and a waiting chain avoids another."""
    jobs = Jobs(RunFolder(run))
    (chain,) = jobs.load_chain().job_ids
    drained, avoided, kept = slurm.nodes
    said = ("scontrol", "--oneliner", "show", "job", f"{chain}_2")
    assert Slurm().find_eligible_nodes(chain) == frozenset(slurm.nodes)
    assert Slurm().find_exit_reason(f"{chain}_2") == "put back"  # it waits
    assert Slurm().exclude_nodes(chain, jobs.path, [avoided], needed=2)
    until = avoided_until(utc_now())
    jobs.append_events(ExcludedEvent(at=utc_now(), nodes=(avoided,), until=until))
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


def test_real_slurm_takes_holds_and_gives_back(slurm, submit, run, monkeypatch, capfd):
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    slurm.call("scontrol", "update", "PartitionName=booster", "State=DOWN")
    try:
        assert submit("cluster.jobs=3", "site.queue=nowhere") == 2
        assert "invalid partition" in capfd.readouterr().err
        assert submit("cluster.jobs=3") == 0
        slurm.wait_for(lambda: "PartitionDown" in status_of(run, Slurm()).why, 30)
        capfd.readouterr()
        assert main(["action=status", f"run={run}", "output=json"]) == 0
        shown = json.loads(capfd.readouterr().out)
        assert (shown["state"], shown["why"]) == ("pending", "PartitionDown")
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


def test_job_that_submits_another_passes_on_nothing_of_itself(programs, tmp_path, monkeypatch):
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


PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol", "qsub", "qstat", "qselect", "qdel")
WRONG = ("--me", "-u", "", "77,78", "77 78", "77\n78", "77;rm", "77_[1-4]", "\u0667")


@pytest.fixture
def jobs(run_on: Run, programs: Programs) -> Jobs:
    for name in PROGRAMS:
        programs.add(name)
    return run_on("juwels")


@pytest.mark.parametrize(
    ("scheduler", "ids", "wrong"),
    [
        (Slurm(), ("77", "77_12"), (*WRONG, "77.pbs-0001")),
        (Pbs(), ("77", "77.pbs-0001", "77[].pbs.site.de", "77[3].pbs-0001"), (*WRONG, "77_12")),
    ],
)
def test_each_scheduler_knows_its_ids(scheduler, ids, wrong):
    for job in ids:
        check_id(scheduler, job, Path("jobs"))
    for job in wrong:
        with pytest.raises(RecipeError) as refused:
            check_id(scheduler, job, Path("jobs"))
        assert refused.value.path == "jobs"
        assert refused.value.problem == f"{job!r} is not a job id of {scheduler.name}"


@pytest.mark.parametrize("action", ["status", "cancel"])
def test_wrong_id_is_refused(action, jobs, programs, capfd):
    submitted(jobs, "--user=walnut", 4)
    assert main([f"action={action}", f"run={jobs.folder.path}"]) == 2
    message = f"{jobs.path}: '--user=walnut' is not a job id of Slurm"
    assert message in capfd.readouterr().err
    line = {"kind": "began", "at": "", "attempt": 0, "nodes": [], "tokens": 0}
    jobs.record.write_text(json.dumps({**line, "job": "../../other/1"}))
    assert main([f"action={action}", f"run={jobs.folder.path}"]) == 2
    assert f"{jobs.record}:1: " in capfd.readouterr().err
    assert programs.calls() == []


@pytest.mark.parametrize("force", ["false", "true"])
def test_foreign_job_is_refused(force, jobs, programs, capfd):
    submitted(jobs, "77", 4)
    run = jobs.folder.path
    programs.add("squeue", says=queued(jobs.path, "77|RUNNING|None|n1", user="walnut"))
    assert main(["action=status", f"run={run}", "output=json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["state"] == "unknown"
    assert shown["why"].startswith("job 77 belongs to user walnut")
    words = ["action=cancel", f"run={run}", f"force={force}"]
    assert main(words) == 2
    stderr = capfd.readouterr().err
    owner = f"job 77 belongs to user walnut and writes into {jobs.path}; "
    assert stderr.startswith(f"{run}: {owner}")
    assert f"expected user {user_name()} and folder {jobs.path}" in stderr
    assert "nothing was cancelled" in stderr
    programs.add("squeue", says=queued(Path("/elsewhere"), "77|RUNNING|None|n1"))
    assert main(words) == 2
    elsewhere = f"job 77 belongs to user {user_name()} and writes into /elsewhere; "
    assert elsewhere in capfd.readouterr().err
    assert {call.split()[0] for call in programs.calls()} == {"squeue"}
    assert not jobs.load_chain().cancelled
    assert not jobs.folder.stop.exists()


def test_run_is_known_by_any_path(jobs, programs, tmp_path, capfd):
    submitted(jobs, "77", 4)
    programs.add("squeue", says=queued(jobs.path, "77|PENDING|Priority|"))
    (tmp_path / "link").symlink_to(jobs.folder.path)
    assert main(["action=cancel", f"run={tmp_path / 'link'}"]) == 0
    assert capfd.readouterr().out == "77: cancelled\n"
    assert programs.calls()[-1] == "scancel --state=PENDING 77"


def test_user_without_an_entry_is_named_by_the_environment(monkeypatch: Patch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setenv("LOGNAME", "walnut")
    assert user_name() == "walnut"
