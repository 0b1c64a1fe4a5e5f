"""The commands of the site pages, on schedulers with the sites' partitions."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from cluster.chain import JobAttempt
from cluster.records import Jobs
from components.run.folder import RunFolder
from tests.cluster import openpbs
from tests.cluster.jobs import ROOT
from tests.cluster.site_page import tried
from tests.cluster.slurm import JUWELS, Pose, local_slurm
from tests.life.conftest import entries

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3_600)]

MODULES = Path("/usr/share/modules/init/bash")
LOAD = re.compile(r"^module (?:load|switch) (.+)$", re.M)
# A package first on PYTHONPATH breaks runs that do not unset it (docs/sites/juwels.md).
BROKEN = 'raise ImportError("the stage\'s own package hides yours")\n'
POSES = {
    "juwels": JUWELS,
    "slurm": Pose(partitions={"gpu": "24:00:00", "test": "01:00:00"}, gpus=4, features=()),
    "smng_p2": Pose(partitions={"general": "48:00:00"}, gpus=0, features=()),
    "jean_zay": Pose(
        partitions={"gpu_p5": "100:00:00", "prepost": "20:00:00"}, gpus=8, features=("a100",)
    ),
}
UNSEEN = {"XDG_CONFIG_HOME", "VIRTUAL_ENV", "PYTHONPATH"}  # of what this test runs in
SHARED = ("project", "scratch", "work", "store")  # each is a variable of that name
# Variables that a login sets, also on a node: a job without its shell's variables has these.
AT_LOGIN = ("SLURM_CONF", "PATH", "HOME", "MODULEPATH", "BASH_ENV", "OMP_NUM_THREADS")


def modules_of(page: str, script: str) -> set[str]:
    """Name what the page and its profile load."""
    profile = ROOT / "conf" / "cluster" / f"{page}.yaml"
    words = yaml.safe_load(profile.read_text())["site"]["modules"] if profile.exists() else []
    lines = LOAD.findall("\n".join([script, *(f"module {line}" for line in words)]))
    return {name for line in lines for name in line.split()}


def write_modules(folder: Path, names: set[str]) -> None:
    """Write a module file for each; Python's plants a package that breaks ours."""
    broken = folder.parent / "broken"
    broken.mkdir()
    (broken / "yaml.py").write_text(BROKEN)
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        planted = f"prepend-path PYTHONPATH {broken}\n" if "Python/" in name else ""
        file.write_text(f"#%Module\n{planted}")


def login_shell(site: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Make the folders that the site has, and what a shell sees there after login."""
    for name in ("home", "laptop", "flare", *SHARED):
        (site / name).mkdir()
    bundle = site / "repository.bundle"
    subprocess.run(
        ["git", "-C", str(ROOT), "bundle", "create", "--quiet", str(bundle), "HEAD"], check=True
    )
    own = Path(sys.prefix, "bin")
    path = [one for one in environment["PATH"].split(os.pathsep) if Path(one) != own]
    folders = {name.upper(): str(site / name) for name in ("home", *SHARED)}
    seen = {key: text for key, text in environment.items() if key not in UNSEEN}
    own_words = {
        "SITE": str(site),
        "BUNDLE": str(bundle),
        "VENV": sys.prefix,
        "MODULEPATH": str(site / "modules"),
        "BASH_ENV": str(MODULES),  # a job's shell finds `module` by it, as at the sites
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join(path),
    }
    return seen | folders | own_words


def login_profile(shell: Mapping[str, str]) -> str:
    """Write what a login shell reads on every machine of the site."""
    names = (*AT_LOGIN, *(name.upper() for name in SHARED))
    return "".join(f"export {name}={shlex.quote(shell[name])}\n" for name in names)


def follow(page: str, site: Path, shell: Mapping[str, str]) -> None:
    """Run the page's commands in one shell. Its output is in ``site/said``."""
    script = tried(ROOT / "docs" / "sites" / f"{page}.md")
    write_modules(site / "modules", modules_of(page, script))
    command = f"set -x\n{script}"
    with (site / "said").open("wb") as said:
        done = subprocess.run(
            ["timeout", "1500", "bash", "-e", "-o", "pipefail", "-c", command],
            cwd=site / "laptop",
            env=shell,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            check=False,
        )
    text = (site / "said").read_text()
    assert done.returncode == 0, "\n".join([text[-6_000:], *logs(site)])


def logs(site: Path) -> Iterator[str]:
    """Read the ends of the logs of jobs and ranks."""
    for file in sorted(site.glob("**/runs/*/*/*")):
        if file.suffix in {".log", ".OU"}:
            yield f"{file}:\n{file.read_text()[-2_000:]}"


def losses(run: Path) -> dict[int, float]:
    """Return the loss of each step, as last computed."""
    return {entry["step"]: entry["loss"] for entry in entries(run, "step")}


def ended_jobs(run: Path) -> tuple[JobAttempt, ...]:
    """Wait for what jobs note after their run has finished; without the word it is None."""
    jobs, end = Jobs(RunFolder(run)), time.monotonic() + 600
    while (
        any(job.ended is None for job in jobs.load_chain().attempts) and time.monotonic() < end
    ):
        time.sleep(0.5)
    return jobs.load_chain().attempts


def check_runs(site: Path) -> Path:
    """Hold what the page's commands left against what it promises; return the second run."""
    (first,) = site.glob("**/runs/first")
    rehearsal = first.parent / "rehearsal"
    (only,) = ended_jobs(first)
    assert only.ended == "finished"
    killed, last = ended_jobs(rehearsal)
    assert (killed.ended, last.ended) == ("failed", "finished")
    said = "".join(logs(site))
    assert "command not found" not in said
    assert killed.why.startswith("rank 1 on ")
    assert last.tokens_at_begin > 0
    assert losses(rehearsal) == losses(first)  # to the last bit: the failure left no trace
    (compared,) = site.glob("**/compared.html")
    assert "rehearsal" in compared.read_text()
    (taken_home,) = site.glob("**/first.html")
    assert taken_home.read_bytes() == (first / "report.html").read_bytes()
    (kept,) = site.glob("**/saved/first/tokens-*")
    assert (kept / "progress.json").is_file()
    return rehearsal


def skip_without(lack: str) -> None:
    if lack:
        assert "NEEDS_SLURM" not in os.environ, lack
        pytest.skip(lack)  # which program is missing, or that this is not root


@pytest.fixture(autouse=True)
def modules() -> None:
    """Need the real command ``module``."""
    skip_without("" if MODULES.exists() else "no module: apt-get install environment-modules")


@pytest.mark.parametrize("page", sorted(POSES))
def test_page_of_a_slurm_site_leads_to_a_report(page: str, tmp_path: Path) -> None:
    with local_slurm(3, POSES[page]) as slurm:
        shell = login_shell(tmp_path, slurm.environment())
        slurm.profile.write_text(login_profile(shell))
        follow(page, tmp_path, shell)
    rehearsal = check_runs(tmp_path)
    killed, last = Jobs(RunFolder(rehearsal)).load_chain().attempts
    assert killed.bad_nodes[0] not in last.nodes
    (avoided,) = entries(rehearsal, "exclusion")
    assert avoided["evidence"]["avoided"] == list(killed.bad_nodes)


@pytest.mark.parametrize("page", ["pbs", "aurora"])
def test_page_of_a_pbs_site_leads_to_a_report(page: str, tmp_path: Path) -> None:
    programs, state = tmp_path / "programs", tmp_path / "state"
    for folder in (programs, state):
        folder.mkdir()
    openpbs.link(programs, state)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    follow(page, tmp_path, login_shell(tmp_path, os.environ | {"PATH": path}))
    killed, _ = Jobs(RunFolder(check_runs(tmp_path))).load_chain().attempts
    assert killed.bad_nodes == (openpbs.NODES[1],)
