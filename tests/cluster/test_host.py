"""A run in an image: the host talks to the scheduler, with little, and the image computes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.records import Jobs
from command.main import main
from components.run.folder import RunFolder
from tests.cluster.jobs import ROOT
from tests.cluster.programs import Programs
from tests.life.conftest import TINY, entries

HOST = ROOT / "requirements" / "host.txt"
# Python that has its own library, this repository, and the packages that are named: no others.
ONLY = """
import runpy, sys
allowed = {*sys.stdlib_module_names, "cluster", "components", *sys.argv.pop(1).split(",")}

class Only:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if first not in allowed and not first.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"the host has no {name}")

sys.meta_path.insert(0, Only())
module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
# What `apptainer exec IMAGE WORDS` does, for an image that is a folder: its files, and of the
# host's what is bound into it. No program of the host is among that.
CONTAIN = """#!/bin/bash
root=$1; shift
exec unshare --mount --propagation=private bash -c '
root=$1; shift
for path in {bound}; do
  mkdir -p "$root$path" && mount --rbind "$path" "$root$path" || exit 125
done
exec unshare --root="$root" --wd="$PWD" "$@"' bash "$root" "$@"
"""
LAUNCHER = """
while case $1 in --*) true;; *) false;; esac; do shift; done
SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=1 exec "$@"
"""
SEEN = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n1", "SLURM_CPUS_PER_TASK": "1"}


def pinned(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z-]+)==(\S+)", text, re.M))


def test_the_packages_of_the_host_have_the_versions_of_the_lock() -> None:
    lock = pinned((ROOT / "requirements" / "run.lock").read_text("utf-8"))
    host = pinned(HOST.read_text("utf-8"))
    assert host
    assert {name: lock[name] for name in host} == host


@pytest.fixture
def submitted_run(programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny run handed over to a scheduler that runs nothing; an image is named."""
    programs.add("sbatch", says="77\n")
    programs.add("squeue")
    programs.add("scancel")
    programs.add("scontrol", says="n1\n")
    programs.script("srun", LAUNCHER)
    monkeypatch.chdir(tmp_path)
    words = (
        *("cluster=juwels", "scale=mini", "cluster.device=cpu", "cluster.hardware=none"),
        *("cluster.nodes=1", "cluster.devices_per_node=1", "cluster.site.directives=[]"),
        *("cluster.site.modules=[]", "cluster.site.environment={}", "cluster.hours=0.5"),
        *("cluster.site.host_suffix=''", "cluster.site.binding.cores_per_rank=1"),
        *("cluster.preflight=none", "cluster.jobs=1", "site.account=kitchen"),
        *(f"site.image={tmp_path}/image", f"cluster.site.container={tmp_path}/contain"),
        *(f"site.host_python={sys.executable}", f"cluster.site.node_folder={tmp_path}"),
    )
    assert main([*TINY, *words, f"run={tmp_path}/run"]) == 0
    return tmp_path / "run"


def test_begin_and_end_need_no_more_than_the_packages_of_the_host(
    submitted_run: Path,
) -> None:
    allowed = ",".join([
        *(name if name != "pyyaml" else "yaml" for name in pinned(HOST.read_text("utf-8"))),
        *("pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"),
    ])

    def on_host(*words: str) -> subprocess.CompletedProcess[str]:
        only = [sys.executable, "-c", ONLY, allowed, *words]
        seen = os.environ | SEEN
        return subprocess.run(only, cwd=ROOT, env=seen, capture_output=True, text=True)

    began = on_host("cluster.begin", str(submitted_run))
    assert (began.returncode, began.stderr) == (0, "job 77, attempt 0: from 0 tokens on n1\n")
    ended = on_host("cluster.end", str(submitted_run), "9")
    assert ended.returncode == 9
    assert "failed: exit status 9, and no rank reported an error" in ended.stderr
    assert "the host has no torch" in on_host("torch").stderr


def lacking() -> str:
    """Say why no container can be made here; nothing if one can."""
    if shutil.which("unshare") is None:
        return "no unshare: apt-get install util-linux"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    return f"a container has mounts of its own: {tried.stderr}" if tried.returncode else ""


@pytest.mark.cluster
def test_a_job_runs_whole_though_its_image_has_no_scheduler(
    submitted_run: Path, tmp_path: Path
) -> None:
    if lack := lacking():
        pytest.skip(lack)  # which right or program is missing
    (tmp_path / "image").mkdir()
    bound = {Path(sys.prefix).resolve(), Path(sys.base_prefix), ROOT, submitted_run}
    folders = ("/proc", "/dev", "/lib", "/lib64", "/usr/lib", "/etc")
    # Python finds its packages by the path that its program was called by.
    called = Path(sys.executable).parent.parent
    paths = [*folders, *map(str, sorted({*bound, called, tmp_path / "prepared"}))]
    there = [path for path in paths if Path(path).exists()]
    (tmp_path / "contain").write_text(CONTAIN.format(bound=" ".join(there)))
    (tmp_path / "contain").chmod(0o755)

    script = (submitted_run / "jobs" / "job.sh").read_text()
    contained = [f"{tmp_path}/contain", f"{tmp_path}/image", sys.executable]
    inside = f"{tmp_path}/contain {tmp_path}/image python"
    assert inside in script
    script = script.replace(inside, " ".join(contained))
    seen = os.environ | SEEN | {"OMP_NUM_THREADS": "1", "TMPDIR": str(submitted_run)}
    without = subprocess.run(
        [*contained, "-m", "cluster.begin", str(submitted_run)],
        cwd=ROOT,
        env=seen,
        capture_output=True,
        text=True,
    )
    assert without.returncode == 1  # as it was: in the image no scheduler answers
    assert "scontrol is not found on" in without.stderr

    done = subprocess.run(["bash", "-c", script], env=seen, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (job,) = Jobs(RunFolder(submitted_run)).load_chain().attempts
    assert (job.ended, job.nodes) == ("finished", ("n1",))
    assert entries(submitted_run, "step")
