"""Whole scripts that copy to nodes, keep checkpoints there, or launch again."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.job import JobSettings, render_job_script
from components.errors import RecipeError
from components.train.callbacks.local_copies import job_folder
from tests.cluster.directives import read_directives
from tests.cluster.jobs import ROOT, job_of, script_of
from tests.cluster.test_render import (
    BOTH,
    MULA,
    PYTHON,
    TEUKEN,
    Machine,
    Words,
    here,
    lines_of,
    machine,
    notes,
    run,
    tidied,
)

__all__ = ["machine"]  # a fixture


def with_copies(words: Words, machine: Machine, folder: Path) -> tuple[JobSettings, Machine]:
    """Let a job copy an environment with a Python that prints ``own python``."""
    (folder / "local").mkdir()
    (folder / "cluster").symlink_to(ROOT / "cluster")
    own = PYTHON.replace("python $*", "$PYTHONPATH $PYTHONSAFEPATH own python $*")
    for name, text in {"venv/bin/python": own, "code/train.py": ""}.items():
        file = folder / "made" / name
        file.parent.mkdir(parents=True)
        file.write_text(text, "utf-8")
        file.chmod(0o755)
    archives = [folder / f"{name}.tar" for name in ("venv", "code")]
    for archive in archives:
        command = ["tar", "-cf", str(archive), "-C", str(folder / "made"), archive.stem]
        subprocess.run(command, check=True)
    local = f"cluster.site.node_folder={folder}/local"
    job = here(job_of(*words, "cluster.imports=node_local", local), folder)
    return job, machine | {"ARCHIVES": " ".join(map(str, archives)), "PYTHONPATH": "/modules"}


@pytest.mark.parametrize("words", [TEUKEN, (*TEUKEN, "cluster.preflight=none"), MULA])
def test_ranks_start_with_their_copy(words: Words, machine: Machine, tmp_path: Path) -> None:
    if "cluster=juwels" in words:
        words = (*words, "cluster.site.setup=[]")  # which unsets PYTHONPATH
    job, seen = with_copies(words, machine, tmp_path)
    assert run(job, seen, TRAIN="7").returncode == 7
    lines = notes(machine)
    number = "654321" if words is MULA else "123456"
    node = f"{tmp_path}/local/kochbuch-{number}"
    assert f"{node}/code:/modules 1 own python -m components.train {job.run}" in lines
    looks = f"{node}/code:{tmp_path}:/modules 1 own python -m components.preflight {job.run}"
    assert (looks in lines_of(machine)) == (job.preflight_seconds is not None)
    assert any(line.startswith(f"python -m cluster.end {job.run} 7") for line in lines)
    broadcast = [line for line in lines if line.startswith("sbcast")]
    names = [f"sbcast kochbuch-{number}.{name}.tar" for name in ("venv", "code")]
    assert broadcast == ([] if words is MULA else names)
    assert list((tmp_path / "local").iterdir()) == []  # removed at the end


@BOTH
def test_node_without_a_copy_ends_the_job(words, machine, tmp_path):
    job, seen = with_copies((*words, "cluster.preflight=none"), machine, tmp_path)
    (tmp_path / "local").rmdir()
    assert run(job, seen).returncode == 1
    assert not any("components.train" in line for line in notes(machine))
    assert f"python -m cluster.end {job.run} 1" in notes(machine)


def test_node_without_a_copy_runs_the_shared_python(machine: Machine, tmp_path: Path) -> None:
    job, seen = with_copies(TEUKEN, machine, tmp_path)
    (tmp_path / "local").rmdir()
    assert run(job, seen, LOOK="1").returncode == 1
    assert f"python -m components.preflight {job.run}" in lines_of(machine)
    assert not any("own python" in line for line in lines_of(machine))


@pytest.mark.parametrize(("says", "status"), [({"LOOK": "1"}, 1), ({"COPIES": "2"}, 2)])
def test_no_copy_is_left_of_a_job_without_ranks(says, status, machine, tmp_path):
    job, seen = with_copies((*TEUKEN, "cluster.site.setup=[]"), machine, tmp_path)
    assert run(job, seen, **says).returncode == status
    assert list((tmp_path / "local").iterdir()) == []
    if status == 1:  # too few nodes are good
        assert f"python -m cluster.end {job.run} 1" in notes(machine)
    else:  # an environment that cannot be archived: no node is asked
        assert not any(line.startswith(("srun", "sbcast")) for line in notes(machine))


@BOTH
def test_kernel_caches_are_on_the_node(words: Words, machine: Machine, tmp_path: Path) -> None:
    site = "cluster.site.environment.TRITON_CACHE_DIR={value: /fast/triton, reason: theirs}"
    job = here(job_of(*words, site), tmp_path)
    script = render_job_script(job).partition("\nrun=")[0]
    asked = 'for name in TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR; do echo "${!name}"; done'
    command = ["bash", "-c", f"{script}\n{asked}"]
    said = subprocess.check_output(command, env=machine, text=True)
    number = "654321" if words is MULA else "123456"
    own = f"/tmp/kochbuch-{number}/cache/TORCHINDUCTOR_CACHE_DIR"
    assert said.split() == ["/fast/triton", own]


@pytest.mark.parametrize(
    ("words", "seen", "expected"),
    [
        (TEUKEN, {}, "expandable_segments:True"),
        (TEUKEN, {"PYTORCH_ALLOC_CONF": "backend:native"}, "backend:native"),
        (TEUKEN, {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, ""),
        (MULA, {}, ""),
    ],
)
def test_memory_of_nvidias_devices_grows_unless_the_allocator_is_set(
    words: Words, seen: Machine, expected: str, machine: Machine, tmp_path: Path
) -> None:
    script = render_job_script(here(job_of(*words), tmp_path)).partition("\nrun=")[0]
    command = ["bash", "-c", f'{script}\necho "$PYTORCH_ALLOC_CONF"']
    said = subprocess.check_output(command, env=machine | seen, text=True)
    assert said.strip() == expected


@BOTH
def test_job_removes_local_checkpoints(words: Words, machine: Machine, tmp_path: Path) -> None:
    local = f"checkpoint.local={{folder: {tmp_path}/memory, every_steps: 5}}"
    job = here(job_of(*words, local), tmp_path)
    job = replace(job, lead_seconds=job.walltime_seconds - 1, node_folder=f"{tmp_path}/disk")
    scheduler = "PBS" if words == MULA else "SLURM"
    seen = {key: value for key, value in machine.items() if key.startswith(scheduler)}
    kept = tmp_path / "memory" / job_folder(seen)
    (kept / "local-run").mkdir(parents=True)
    others = tmp_path / "memory" / "somebody's"
    others.mkdir()
    assert run(job, machine, TRAIN="3").returncode == 3
    assert tidied(machine).split() == [f"{tmp_path}/disk/{kept.name}", str(kept)]
    assert not kept.exists()
    assert others.exists()


def test_ranks_outside_of_jobs_have_a_folder_of_their_user() -> None:
    assert job_folder({}).startswith("kochbuch-user-")
    assert job_folder({"PBS_JOBID": "7.server"}) == "kochbuch-7"


@pytest.mark.parametrize(("folder", "message"), [("/a b", "is not allowed"), ("m", "pattern")])
def test_wrong_folder_of_local_checkpoints_is_refused(folder: str, message: str) -> None:
    with pytest.raises(RecipeError, match=rf"checkpoint\.local\.folder: .*{message}"):
        script_of(*TEUKEN, f"checkpoint.local={{folder: '{folder}', every_steps: 5}}")


RESTARTS = ("watchdog.restarts=3", "cluster.spare_nodes=1")


@BOTH
@pytest.mark.parametrize("over", [False, True])
def test_failed_launch_is_repeated_while_its_end_requests_it(words, over, machine, tmp_path):
    job = here(job_of(*words, *RESTARTS), tmp_path)
    assert job.nodes == job.cluster.nodes + 1
    job = replace(job, lead_seconds=job.walltime_seconds - 400)
    # Two launches more than the first fail as well, and the last one's status is the job's.
    says = {"RELAUNCHES": "9", "AGAIN": "3"} if over else {"RELAUNCHES": "5"}
    done = run(job, machine, TRAIN="7", **says)
    assert (done.returncode, done.stderr) == (0 if over else 7, "")
    said = [line.split() for line in notes(machine) if line.startswith("python -m ")]
    acts = [" ".join([line[2], *line[4:5]]) for line in said]
    chain = ["cluster.begin chain" if words is MULA else "cluster.begin"]
    once = ["cluster.preflight", "components.train", "cluster.end 7"]
    again = ["cluster.begin again"] if over else ["cluster.begin again", *once] * 2
    assert acts == [*chain, *once, *again]
    lines = [line.split() for line in notes(machine) if "cluster.end" in line]
    assert all(395 <= int(line[-1]) <= 400 for line in lines)
    for port in (line for line in notes(machine) if line.startswith("port")):
        assert port.startswith(f"port {23456 if words is TEUKEN else 24321} at node1")


@BOTH
def test_script_without_restarts_launches_once(words: Words) -> None:
    script = script_of(*words, "cluster.spare_nodes=0")
    assert 'cluster.begin "$run" again' not in script
    assert script.endswith("its status is the job's status\n")
    assert "--no-kill" not in read_directives(script)


def test_job_with_restarts_tells_slurm_to_survive_a_lost_node() -> None:
    directives = read_directives(script_of(*TEUKEN, *RESTARTS))
    assert "--no-kill" in directives
    assert directives["--nodes"] == ["129"]
    assert directives["--ntasks-per-node"] == ["4"]
