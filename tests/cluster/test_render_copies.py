"""Scripts that copy Python to their nodes, and where kernels are cached: executed whole."""

import subprocess
from pathlib import Path

import pytest

from cluster.job import JobSettings, render_job_script
from tests.cluster.jobs import ROOT, job_of
from tests.cluster.test_render import MULA, PYTHON, TEUKEN, here, machine, notes, run

__all__ = ["machine"]  # a fixture


def with_copies(
    words: tuple[str, ...], machine: dict[str, str], folder: Path
) -> tuple[JobSettings, dict[str, str]]:
    """Let a job copy an environment whose Python says that it is the node's."""
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
def test_ranks_start_with_their_node_s_copy_and_what_speaks_for_the_job_with_the_shared_one(
    words: tuple[str, ...], machine: dict[str, str], tmp_path: Path
) -> None:
    if "cluster=juwels" in words:
        words = (*words, "cluster.site.setup=[]")  # which unsets PYTHONPATH
    job, seen = with_copies(words, machine, tmp_path)
    done = run(job, seen, TRAIN="7")
    said = notes(machine)
    number = "654321" if words is MULA else "123456"
    node = f"{tmp_path}/local/kochbuch-{number}"
    assert done.returncode == 7
    assert f"{node}/code:/modules 1 own python -m components.train {job.run}" in said
    everything = Path(machine["NOTES"]).read_text("utf-8").splitlines()
    looks = f"{node}/code:{tmp_path}:/modules 1 own python -m components.preflight {job.run}"
    assert (looks in everything) == (job.preflight_seconds is not None)
    ended = f"python -m cluster.end {job.run} 7"
    assert any(line.startswith(ended) for line in said)
    broadcast = [line for line in said if line.startswith("sbcast")]
    names = [f"sbcast kochbuch-{number}.{name}.tar" for name in ("venv", "code")]
    assert broadcast == ([] if words is MULA else names)
    assert list((tmp_path / "local").iterdir()) == []  # removed at the end


@pytest.mark.parametrize("words", [TEUKEN, MULA])
def test_without_a_preflight_a_node_that_takes_no_copy_ends_the_job(
    words: tuple[str, ...], machine: dict[str, str], tmp_path: Path
) -> None:
    job, seen = with_copies((*words, "cluster.preflight=none"), machine, tmp_path)
    (tmp_path / "local").rmdir()
    done = run(job, seen)
    assert done.returncode == 1
    assert not any("components.train" in line for line in notes(machine))
    assert f"python -m cluster.end {job.run} 1" in notes(machine)


def test_with_a_preflight_a_node_without_a_copy_says_so_by_the_shared_python(
    machine: dict[str, str], tmp_path: Path
) -> None:
    job, seen = with_copies(TEUKEN, machine, tmp_path)
    (tmp_path / "local").rmdir()
    done = run(job, seen, LOOK="1")
    assert done.returncode == 1
    said = Path(machine["NOTES"]).read_text("utf-8").splitlines()
    assert f"python -m components.preflight {job.run}" in said
    assert not any("own python" in line for line in said)


def test_where_too_few_nodes_are_good_no_copy_is_left(
    machine: dict[str, str], tmp_path: Path
) -> None:
    job, seen = with_copies((*TEUKEN, "cluster.site.setup=[]"), machine, tmp_path)
    assert run(job, seen, LOOK="1").returncode == 1
    assert f"python -m cluster.end {job.run} 1" in notes(machine)
    assert list((tmp_path / "local").iterdir()) == []


def test_an_environment_that_cannot_be_archived_ends_the_job_before_any_node_is_asked(
    machine: dict[str, str], tmp_path: Path
) -> None:
    job, seen = with_copies(TEUKEN, machine, tmp_path)
    assert run(job, seen, COPIES="2").returncode == 2
    assert not any(line.startswith(("srun", "sbcast")) for line in notes(machine))


@pytest.mark.parametrize("words", [TEUKEN, MULA])
def test_caches_of_kernels_are_the_node_s_unless_the_site_says_otherwise(
    words: tuple[str, ...], machine: dict[str, str], tmp_path: Path
) -> None:
    site = "cluster.site.environment.TRITON_CACHE_DIR={value: /fast/triton, reason: theirs}"
    job = here(job_of(*words, site), tmp_path)
    script = render_job_script(job).partition("\nrun=")[0]
    asked = 'for name in TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR; do echo "${!name}"; done'
    command = ["bash", "-c", f"{script}\n{asked}"]
    done = subprocess.run(command, env=machine, text=True, capture_output=True, check=True)
    number = "654321" if words is MULA else "123456"
    own = f"/tmp/kochbuch-{number}/cache/TORCHINDUCTOR_CACHE_DIR"
    assert done.stdout.split() == ["/fast/triton", own]


@pytest.mark.parametrize(
    ("words", "seen", "expected"),
    [
        (TEUKEN, {}, "expandable_segments:True"),
        (TEUKEN, {"PYTORCH_ALLOC_CONF": "backend:native"}, "backend:native"),
        (TEUKEN, {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, ""),
        (MULA, {}, ""),
    ],
)
def test_memory_of_nvidias_devices_grows_unless_the_allocator_is_set_already(
    words: tuple[str, ...],
    seen: dict[str, str],
    expected: str,
    machine: dict[str, str],
    tmp_path: Path,
) -> None:
    script = render_job_script(here(job_of(*words), tmp_path)).partition("\nrun=")[0]
    command = ["bash", "-c", f'{script}\necho "$PYTORCH_ALLOC_CONF"']
    said = subprocess.check_output(command, env=machine | seen, text=True)
    assert said.strip() == expected
