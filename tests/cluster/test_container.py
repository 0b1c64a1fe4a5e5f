"""Images that Slurm starts by a file: the script writes it, and tasks alone are inside."""

import re
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.array import ArrayWork, array_settings
from cluster.container import check_container, container_text
from cluster.script import fill_template
from cluster.user import User
from components.config.schema.cluster import Variable
from components.errors import RecipeError
from tests.cluster.jobs import CHECKOUT, job_of, recipe_of, script_of
from tests.cluster.programs import Programs
from tests.cluster.test_render import here, lines_of, machine, notes, run

__all__ = ["machine"]  # a fixture

IMAGE = "site.image=/capstor/scratch/cscs/me/kochbuch.sqsh"
ALPS = ("recipe=teuken7b", "cluster=alps")


def test_file_tells_image_and_hooks_what_they_need(machine, tmp_path):
    job = here(job_of(*ALPS, IMAGE, f"site.host_python={tmp_path}/venv/bin/python"), tmp_path)
    job = replace(job, container_path=f"{job.run}/jobs/container-$SLURM_JOB_ID.toml")
    (Path(job.run) / "jobs").mkdir(parents=True)
    done = run(job, machine, SLURMD_NODENAME="node1", TRAIN="7")
    assert (done.returncode, done.stderr) == (7, "")
    file = Path(job.run) / "jobs" / "container-123456.toml"
    found = tomllib.loads(file.read_text("utf-8"))
    assert found["image"] == "/capstor/scratch/cscs/me/kochbuch.sqsh"
    assert found["mounts"] == ["/capstor:/capstor", "/iopsstor:/iopsstor"]
    assert found["workdir"] == str(CHECKOUT)
    hook = found["annotations"]["com"]["hooks"]["aws_ofi_nccl"]
    assert hook == {"enabled": "true", "variant": "cuda-dl"}
    assert found["env"]["NCCL_NET"] == "AWS Libfabric"
    assert found["env"]["PMIX_MCA_psec"] == "^munge"
    # Who looks at a node, who gathers, the ranks: tasks in the image. Begin and end: the host.
    inside = [line for line in lines_of(machine) if f"--environment={file}" in line]
    assert len(inside) == 3
    gathers = "--overlap --cpu-bind=none --nodes=1 --ntasks=1 --nodelist=node1 "
    for module, words in (
        ("components.preflight", "--ntasks-per-node=1 "),
        ("cluster.preflight", gathers),
        ("components.train", "--ntasks=8 "),
    ):
        (line,) = (line for line in inside if f" -m {module} " in line)
        assert words in line
    assert notes(machine)[0] == f"python -m cluster.begin {job.run}"
    assert notes(machine)[-1] == f"python -m cluster.end {job.run} 7"


def test_script_of_the_host_does_not_export_what_the_image_gets() -> None:
    script = script_of(*ALPS, IMAGE)
    assert not re.search(r"^export NCCL", script, re.M)
    assert '\nNCCL_NET = "AWS Libfabric"  # fail rather than fall' in script
    plain = script_of(*ALPS)
    assert "\nexport NCCL_NET='AWS Libfabric'  # fail rather than fall" in plain
    assert "--environment" not in plain
    host = "cluster.site.environment.SLURM_X={value: a, side: host, reason: the launcher}"
    mixed = script_of(*ALPS, IMAGE, host)
    assert "\nexport SLURM_X=a  # the launcher\n" in mixed
    assert "SLURM_X =" not in mixed
    assert " env -u SLURM_X python -m components.train" in mixed


def test_value_with_quotes_is_one_string_of_the_file() -> None:
    job = job_of(*ALPS, IMAGE)
    odd = Variable(value='a "b" \\c\u00e9', reason="a trial")
    site = job.site.model_copy(update={"environment": {"WORDS": odd}})
    text = container_text(site, job.user, "/p")
    assert tomllib.loads(str(text))["env"] == {"PYTHONSAFEPATH": "", "WORDS": odd.value}


def test_array_starts_its_python_in_the_image(tmp_path: Path) -> None:
    recipe, user = recipe_of(*ALPS), User(account="me", image="/capstor/i.sqsh")
    kind: dict[str, Any] = {"kind": "data", "module": "data_prep.task", "words": ("x",)}
    work = ArrayWork(**kind, logs=tmp_path, elements=2)
    settings = array_settings(recipe, user, work, repository=CHECKOUT)
    programs = Programs(tmp_path)
    programs.script("srun", "")
    seen = {"SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n", "SLURM_ARRAY_TASK_ID": "1"}
    script = fill_template("slurm_array.sh.j2", settings)
    script = script.replace(f"cd {CHECKOUT}", f"cd {tmp_path}")
    command, seen = ["bash", "-c", script], {"PATH": programs.path, **seen}
    done = subprocess.run(command, env=seen, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    file = tmp_path / "container-5.toml"
    (call,) = programs.calls()
    assert call.endswith(f"--environment={file} python -m data_prep.task x 1")
    assert tomllib.loads(file.read_text("utf-8"))["image"] == "/capstor/i.sqsh"


def test_container_file_is_refused_with_copies_and_elsewhere_than_on_slurm() -> None:
    message = r"imports: node_local, but with a container file each"
    with pytest.raises(RecipeError, match=message):
        job_of(*ALPS, IMAGE, "cluster.imports=node_local")
    job_of(*ALPS, "cluster.imports=node_local")  # of an environment they are not
    job = job_of(*ALPS, IMAGE)
    elsewhere = job.cluster.model_copy(update={"scheduler": "pbs"})
    message = r"container_file: pbs cannot start tasks by a container file"
    with pytest.raises(RecipeError, match=message):
        check_container(elsewhere, job.site, job.user)
    check_container(elsewhere, job.site, User())
