"""Ranks on a real Slurm import from their node's own copies: the same losses as ever."""

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from command.arguments import ROOT
from components.run.history import read_lines
from components.run.provenance import list_required
from tests.cluster.slurm import LocalSlurm
from tests.cluster.test_preflight_life import SHORT
from tests.cluster.test_slurm_life import (
    Submit,
    finish,
    losses,
    same_as_uninterrupted,
    status,
    submit,
    uninterrupted,
    wait_until,
)

__all__ = ["same_as_uninterrupted", "submit", "uninterrupted"]  # fixtures
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600)]

PACKAGES = Path(sysconfig.get_path("purelib"))
TRACER = ("strace", "-D", "-f", "--seccomp-bpf", "-qq", "-e")
RUNS = re.compile(r'execve\("[^"]*/python[\d.]*", .* = 0$')
OPENS = re.compile(r'open(?:at\(AT_FDCWD, |\()"([^"]+)"')
BEARS = re.compile(r"(?:clone3?|v?fork)\b.* = (\d+)$")
# Another call came between its beginning and its rest.
CUT, REST = " <unfinished ...>", re.compile(r"<\.\.\. \w+ resumed>")
CALLS = "trace=openat,open,execve,clone,clone3,fork,vfork"


def needed(names: Iterable[str]) -> set[str]:
    """Name the installed packages that these ask for, and those that they ask for."""
    found, waiting = set[str](), list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            requirements = [Requirement(text) for text in distribution(name).requires or ()]
        except PackageNotFoundError:
            continue  # for another system
        found.add(name)
        for one in requirements:
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                waiting.append(one.name)
    return found


def environment(venv: Path, names: set[str]) -> Path:
    """Make an environment of its own with these packages, linked and not copied."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (into,) = venv.glob("lib/python3.*/site-packages")
    tops = {file.parts[0] for name in names for file in distribution(name).files or ()}
    for top in sorted(tops - {"..", "__pycache__"}):
        if (PACKAGES / top).exists():
            subprocess.run(["cp", "-al", str(PACKAGES / top), str(into / top)], check=True)
    return venv


def calls(trace: Path) -> Iterator[tuple[str, str]]:
    """Yield the process and the text of every call, whole, when it ended."""
    begun = dict[str, str]()
    for line in trace.read_text("utf-8", errors="replace").splitlines():
        process, call = line.split(maxsplit=1)
        if call.endswith(CUT):
            begun[process] = call.removesuffix(CUT)
        elif rest := REST.match(call):
            yield process, begun.pop(process, "") + call[rest.end() :]
        else:
            yield process, call


def opened(trace: Path, program: str) -> list[list[Path]]:
    """List for each Python that ran ``program`` what it and its children opened."""
    groups = dict[str, list[Path]]()  # by process, its parent's if that is one
    found: list[list[Path]] = []
    for process, call in calls(trace):
        if RUNS.match(call) and f'"-m", "{program}"' in call:
            found.append(groups.setdefault(process, []))
        elif process not in groups:
            continue
        elif path := OPENS.match(call):
            groups[process].append(Path(path[1]))
        elif child := BEARS.search(call):
            groups[child[1]] = groups[process]
    return found


def below(paths: list[Path], folder: Path) -> list[Path]:
    """Leave out the folder itself, in which ranks are started and look around."""
    return [path for path in paths if folder in path.parents]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed here")
def test_ranks_open_nothing_of_the_shared_environment_and_their_losses_are_the_same(
    slurm: LocalSlurm,
    submit: Submit,
    same_as_uninterrupted: Callable[[Path], None],
    tmp_path: Path,
) -> None:
    venv = environment(tmp_path / "venv", needed(["torch", *list_required(("run",))]))
    local = (f"cluster.site.node_folder={slurm.local}", "cluster.imports=node_local")
    traced = slurm.nodes[0]  # the script runs there, too
    slurm.stop(traced)
    slurm.start_node(traced, *TRACER, CALLS, "-o", str(tmp_path / "trace"))
    slurm.wait_for(lambda: slurm.idle() == set(slurm.nodes), 30)
    try:
        run = submit("copied", *SHORT, *local, f"site.venv={venv}")
        (archive,) = (venv / "copies").iterdir()  # the job finds it made
        # Under a tracer some ten thousand files are not removed within finish's minute.
        wait_until(slurm, run, lambda: bool(status(run).jobs) and not status(run).queued, 600)
    finally:
        slurm.stop(traced)
        slurm.start_node(traced)
        slurm.wait_for(lambda: slurm.idle() == set(slurm.nodes), 30)

    assert status(run).state == "finished"
    shared = (venv, ROOT, PACKAGES)
    (script,) = opened(tmp_path / "trace", "cluster.begin")
    assert all(len(below(script, folder)) > 50 for folder in shared[:2])  # the trace is whole
    for program in ("components.preflight", "components.train"):
        (rank,) = opened(tmp_path / "trace", program)
        assert len(below(rank, slurm.local)) > 1_000
        for folder in shared:
            assert below(rank, folder) == []
    assert str(archive) in (run / "copies" / "archives").read_text().splitlines()
    seconds = [float(file.read_text()) for file in (run / "copies").glob("*.seconds")]
    assert len(seconds) == 2
    assert len(losses(run)) == 20
    same_as_uninterrupted(run)


def test_node_without_room_is_left_out(slurm, submit, tmp_path):
    venv = environment(tmp_path / "venv", set())
    # As where modules bring the packages: Python finds them by PYTHONPATH.
    modules = f"cluster.site.environment.PYTHONPATH={{value: {PACKAGES}, reason: modules}}"
    local = (f"cluster.site.node_folder={slurm.local}", "cluster.imports=node_local", modules)
    full = slurm.nodes[1]
    slurm.on_node(full, *("mount", "-t", "tmpfs", "-o", "size=256k", "none", str(slurm.local)))
    try:
        run = submit("full", *SHORT, *local, "cluster.spare_nodes=1", f"site.venv={venv}")
        end = finish(slurm, run)
    finally:
        slurm.on_node(full, "umount", "--lazy", str(slurm.local))
    assert end.state == "finished"
    events = read_lines(run / "events.jsonl")
    (event,) = (one for one in events if one["kind"] == "preflight")
    assert event["evidence"] == {"nodes": 3, "needed": 2, "excluded": {full: ["copies"]}}
    assert f"{full}: copies: no copy: {slurm.local}: " in event["cause"]
    assert " bytes are free, " in event["cause"]
    assert (run / "preflight" / "nodes").read_text().split() == [slurm.nodes[0], slurm.nodes[2]]
    assert not list(slurm.folder.glob("local-*/kochbuch-*"))  # removed at the end
