"""The verdict on a job's nodes: this job excludes bad nodes, and the next job avoids them."""

import json
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

from cluster.begin import start_job
from cluster.chain import ExcludedEvent
from cluster.decisions import avoided_until
from cluster.end import end_job
from cluster.preflight import look_at_allocation, look_at_nodes
from cluster.records import Jobs, utc_now
from components.config.check import read_recipe
from components.errors import RecipeError
from components.preflight.verdict import (
    NodeReport,
    NodeVerdict,
    PreflightVerdict,
    read_verdict,
    write_verdict,
)
from components.run.folder import RunFolder
from components.run.history import read_lines
from tests.cluster.jobs import Run, job_of, recipe_of, submitted
from tests.cluster.programs import Patch, Programs, queued
from tests.cluster.slurm import free_ports
from tests.components.preflight.conftest import finding, report

NODES = tuple(f"jwb{number:04d}" for number in range(1, 5))
SMALL = (
    *("scale=mini", "cluster.nodes=2", "cluster.devices_per_node=1", "cluster.device=cpu"),
    *("cluster.hardware=none", "cluster.preflight.answer_seconds=20", "cluster.spare_nodes=2"),
)
SEEN = {"SLURM_JOB_ID": "81", "SLURM_JOB_NODELIST": "jwb[0001-0004]"}


@pytest.fixture
def jobs(run_on: Run, programs: Programs) -> Jobs:
    """A job of two nodes and two to spare has begun."""
    programs.add("scontrol", says="\n".join(NODES))
    for name in ("scancel", "srun", "sinfo"):
        programs.add(name)
    jobs = run_on("juwels", *SMALL)
    programs.add("squeue", says=queued(jobs.path, "77_4|PENDING|Dependency|"))
    submitted(jobs, "81", 4)
    start_job(jobs.folder.path, SEEN)
    return jobs


def speak(port: int, reports: list[NodeReport]) -> None:
    """Say what nodes say, in their place; their links are all of one speed."""
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=20))
    for one in reports:
        store.set(f"report/{one.node}", one.model_dump_json())
    for name in json.loads(store.get("roster")):
        store.set(f"links/{name}", json.dumps({"other": 1.0}))


def look(run: Path, reports: list[NodeReport], seen: Mapping[str, str] = SEEN) -> int:
    (port,) = free_ports(1)
    speaker = threading.Thread(target=speak, args=(port, reports))
    speaker.start()
    try:
        return look_at_nodes(run, {**seen, "MASTER_PORT": str(port)})
    finally:
        speaker.join()


def with_bad(name: str, check: str) -> NodeReport:
    return report(name).model_copy(update={"findings": (finding(check, "bad"),)})


def test_bad_node_is_left_out_and_avoided(jobs, programs, capfd):
    said = [with_bad(NODES[0], "run folder"), *map(report, NODES[1:])]
    assert look(jobs.folder.path, said) == 0
    err = capfd.readouterr().err
    assert f"preflight: {NODES[0]}: run folder: x, expected y" in err
    assert "3 of 4 nodes are good, 2 are needed" in err
    chosen = (jobs.folder.path / "preflight" / "nodes").read_text().split()
    assert chosen == [NODES[1], NODES[2]]  # as many as there are ranks for
    (event,) = read_lines(jobs.folder.events)
    assert event["kind"] == "preflight"
    assert event["evidence"]["excluded"] == {NODES[0]: ["run folder"]}
    jobs.folder.write_json("results.json", {"status": "stopped"})
    assert end_job(jobs.folder.path, 0) == 0
    assert jobs.load_chain().attempts[0].bad_nodes == (NODES[0],)
    assert programs.calls()[-1] == f"scontrol update JobId=77_4 ExcNodeList={NODES[0]}"


def test_pbs_job_without_a_preflight_avoids_no_node(run_on, programs, tmp_path, capfd):
    programs.add("mpiexec")
    (tmp_path / "nodefile").write_text("".join(f"{name}\n" for name in NODES))
    seen = {"PBS_JOBID": "9.pbs", "PBS_NODEFILE": str(tmp_path / "nodefile")}
    small = [word for word in SMALL if not word.startswith("cluster.preflight")]
    jobs = run_on("aurora", *small, "cluster.preflight=none")
    start_job(jobs.folder.path, seen)
    error = {"message": "RuntimeError: NVRM: Xid 79, GPU has fallen off the bus"}
    jobs.folder.write_json("ranks/error-1.json", error)
    assert end_job(jobs.folder.path, 1) == 1
    message = f"PBS cannot avoid nodes without a preflight; report {NODES[1]} to the site"
    assert message in capfd.readouterr().err
    assert list(jobs.load_chain().avoided) == []


def test_too_few_good_nodes_fail_the_job(jobs: Jobs, programs: Programs) -> None:
    said = [report(NODES[0]), *(with_bad(name, "packages") for name in NODES[1:])]
    assert look(jobs.folder.path, said) == 1
    assert end_job(jobs.folder.path, 1) == 1
    (job,) = jobs.load_chain().attempts
    assert job.why.startswith(f"preflight: {NODES[1]}: packages: x, expected y | ")
    assert job.bad_nodes == NODES[1:]
    # Three of four nodes are more than a quarter: it may be none of them.
    assert not any("ExcNodeList" in call for call in programs.calls())


def test_check_failed_everywhere_ends_the_chain(jobs, programs, capfd):
    assert look(jobs.folder.path, [with_bad(name, "data") for name in NODES]) == 1
    assert end_job(jobs.folder.path, 1) == 1
    assert "a new job would fail the same way: the chain ends here" in capfd.readouterr().err
    (job,) = jobs.load_chain().attempts
    assert job.why.startswith("preflight: data on every node; ")
    assert job.bad_nodes == ()
    assert programs.calls()[-1] == "scancel --state=PENDING 77"  # what the queue has


def test_next_job_may_find_nodes_that_answer(jobs: Jobs, programs: Programs) -> None:
    silent = (finding("answer", "bad"),)
    nodes = tuple(NodeVerdict(node=name, findings=silent) for name in NODES)
    write_verdict(jobs.folder, PreflightVerdict(needed=2, nodes=nodes, seconds=1.0))
    assert end_job(jobs.folder.path, 1) == 1
    (job,) = jobs.load_chain().attempts
    assert job.why.startswith("preflight: answer on every node; ")
    assert job.bad_nodes == ()
    assert not any(call.startswith(("scancel", "scontrol update")) for call in programs.calls())
    start_job(jobs.folder.path, SEEN)  # it forgets the verdict of the one before
    assert read_verdict(jobs.folder) is None
    assert (jobs.folder.path / "preflight" / "hosts").read_text().split() == list(NODES)


@pytest.fixture
def pbs(run_on: Run, tmp_path: Path) -> dict[str, str]:
    """The variables of a PBS job that has begun. One names a file of full host names."""
    # Three times each, as where a node's resources say mpiprocs=3.
    nodefile = tmp_path / "nodefile"
    nodefile.write_text("".join(f"{name}.hsn.example\n" * 3 for name in NODES))
    seen = {"PBS_JOBID": "81.pbs", "PBS_NODEFILE": str(nodefile)}
    start_job(run_on("aurora", *SMALL, "watchdog.restarts=3").folder.path, seen)
    return seen


def test_ranks_start_under_pbs_on_names_of_its_file(pbs, tmp_path):
    preflight = tmp_path / "run" / "preflight"
    full = [f"{name}.hsn.example" for name in NODES]
    assert (preflight / "hosts").read_text().split() == full
    said = [with_bad(NODES[1], "clock"), *(report(name) for name in NODES if name != NODES[1])]
    assert look(tmp_path / "run", said, pbs) == 0
    assert (preflight / "nodes").read_text().split() == [full[0], full[2]]
    folder = RunFolder(tmp_path / "run")
    error = {"message": "RuntimeError: NVRM: Xid 79, GPU has fallen off the bus"}
    folder.write_json("ranks/error-1.json", error)
    assert end_job(folder.path, 1) == 1
    bad = Jobs(folder).load_chain().attempts[0].bad_nodes
    assert bad == (NODES[1], NODES[2])  # rank 1 is on the second of two


def test_good_avoided_node_is_left_out_under_pbs(pbs: dict[str, str], tmp_path: Path) -> None:
    until, full = avoided_until(utc_now()), [f"{name}.hsn.example" for name in NODES]
    avoided = ExcludedEvent(at=utc_now(), nodes=(full[0],), until=until)
    Jobs(RunFolder(tmp_path / "run")).append_events(avoided)
    assert look(tmp_path / "run", [report(name) for name in NODES], pbs) == 0
    chosen = (tmp_path / "run" / "preflight" / "nodes").read_text().split()
    assert chosen == full[1:3]


def test_preflight_by_hand_uses_the_launcher_of_the_script(
    pbs: dict[str, str], programs: Programs, tmp_path: Path, monkeypatch: Patch
) -> None:
    for name, value in pbs.items():
        monkeypatch.setenv(name, value)
    programs.add("mpiexec")
    folder = RunFolder(tmp_path / "run")
    small = [word for word in SMALL if "answer_seconds" not in word]
    words = ("recipe=teuken7b", "cluster=aurora", *small)
    hasty = recipe_of(*words, "cluster.preflight.answer_seconds=1.0")
    assert look_at_allocation(hasty, folder, "python").of_all == ("answer",)
    on_each = " ".join(job_of(*words).on_each).replace("$run", str(folder.path))
    on_each = on_each.replace(f"$(wc -l < {folder.path}/preflight/hosts)", "4")
    assert programs.calls() == [f"{on_each} python -m components.preflight {folder.path}"]
    assert on_each.startswith(f"mpiexec -n 4 --ppn 1 --hostfile {folder.path}/preflight/hosts ")


@pytest.mark.parametrize(
    ("process", "message"),
    [("0", "srun is not found in this job"), (None, "this shell is not on a node")],
)
def test_preflight_by_hand_needs_a_launcher_and_a_compute_node(
    process: str | None, message: str, jobs: Jobs, programs: Programs, monkeypatch: Patch
) -> None:
    for name in ("SLURM_PROCID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in SEEN.items():
        monkeypatch.setenv(name, value)
    if process is not None:
        monkeypatch.setenv("SLURM_PROCID", process)
        monkeypatch.setenv("PATH", str(programs.folder))
        (programs.folder / "srun").unlink()
    with pytest.raises(RecipeError, match=message):
        look_at_allocation(read_recipe(jobs.folder.recipe), jobs.folder, "python")
