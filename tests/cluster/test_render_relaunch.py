"""Scripts that launch their ranks again: executed whole."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.directives import read_directives
from tests.cluster.jobs import job_of, script_of
from tests.cluster.test_render import MULA, TEUKEN, here, machine, notes, run

__all__ = ["machine"]  # a fixture

RESTARTS = ("watchdog.restarts=3", "cluster.spare_nodes=1")


def acts(machine: dict[str, str]) -> list[str]:
    """List the acts of a job's script, without what says how much time is left."""
    said = [line.split() for line in notes(machine) if line.startswith("python -m ")]
    return [" ".join([line[2], *line[4:5]]) for line in said]


@pytest.mark.parametrize("words", [TEUKEN, MULA])
def test_a_launch_that_failed_is_made_again_in_the_same_job_as_often_as_its_end_says(
    words: tuple[str, ...], machine: dict[str, str], tmp_path: Path
) -> None:
    job = here(job_of(*words, *RESTARTS), tmp_path)
    assert job.nodes == job.cluster.nodes + 1
    job = replace(job, lead_seconds=job.walltime_seconds - 400)
    # Two launches more than the first fail as well, and the last one's status is the job's.
    done = run(job, machine, TRAIN="7", RELAUNCHES="5")
    assert (done.returncode, done.stderr) == (7, "")
    chain = ["cluster.begin chain" if words is MULA else "cluster.begin"]
    once = ["cluster.preflight", "components.train", "cluster.end 7"]
    assert acts(machine) == [*chain, *once, *(["cluster.begin again", *once] * 2)]
    lines = [line.split() for line in notes(machine) if "cluster.end" in line]
    assert all(395 <= int(line[-1]) <= 400 for line in lines)
    for port in (line for line in notes(machine) if line.startswith("port")):
        assert port.startswith(f"port {23456 if words is TEUKEN else 24321} at node1")


@pytest.mark.parametrize("words", [TEUKEN, MULA])
def test_a_chain_that_is_over_meanwhile_ends_the_job_instead_of_another_launch(
    words: tuple[str, ...], machine: dict[str, str], tmp_path: Path
) -> None:
    job = here(job_of(*words, *RESTARTS), tmp_path)
    job = replace(job, lead_seconds=job.walltime_seconds - 400)
    done = run(job, machine, TRAIN="7", RELAUNCHES="9", AGAIN="3")
    assert (done.returncode, done.stderr) == (0, "")
    assert acts(machine)[-2:] == ["cluster.end 7", "cluster.begin again"]


def test_a_job_that_outlives_a_node_says_so_to_slurm() -> None:
    directives = read_directives(script_of(*TEUKEN, *RESTARTS))
    assert "--no-kill" in directives
    assert directives["--nodes"] == ["129"]
    assert directives["--ntasks-per-node"] == ["4"]
    assert "--no-kill" not in read_directives(script_of(*TEUKEN))


def test_without_restarts_a_script_launches_once() -> None:
    for words in (TEUKEN, MULA):
        script = script_of(*words, "cluster.spare_nodes=0")
        assert 'cluster.begin "$run" again' not in script
        assert script.endswith("its status is the job's status\n")
