"""Local copies of checkpoints go with the job that kept them, from all its nodes."""

from dataclasses import replace
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.train.callbacks.local_copies import job_folder
from tests.cluster.jobs import job_of, script_of
from tests.cluster.test_render import MULA, TEUKEN, here, run, tidied
from tests.cluster.test_render import machine as machine


@pytest.mark.parametrize("words", [TEUKEN, MULA])
def test_a_job_removes_the_local_copies_that_its_ranks_keep(
    words: tuple[str, ...], machine: dict[str, str], tmp_path: Path
) -> None:
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


def test_a_folder_of_local_copies_may_stand_in_a_script() -> None:
    with pytest.raises(RecipeError, match=r"checkpoint\.local\.folder: .*is not allowed"):
        script_of(*TEUKEN, "checkpoint.local={folder: '/a b', every_steps: 5}")


def test_a_folder_of_local_copies_is_absolute() -> None:
    with pytest.raises(RecipeError, match=r"checkpoint\.local\.folder: .*pattern"):
        script_of(*TEUKEN, "checkpoint.local={folder: memory, every_steps: 5}")
