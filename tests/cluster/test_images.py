"""Images for each kind of GPU, and the few packages of the host that starts them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from components.versions import PYTHON
from tests.cluster.jobs import ROOT

IMAGES = sorted((ROOT / "cluster" / "images").glob("*.def"))


def test_each_kind_of_gpu_of_a_profile_has_a_definition() -> None:
    profiles = (ROOT / "conf" / "cluster").glob("*.yaml")
    kinds = {str(yaml.safe_load(file.read_text("utf-8")).get("device")) for file in profiles}
    assert {file.stem for file in IMAGES} == kinds - {"auto", "cpu", "None"}


@pytest.mark.parametrize("file", IMAGES, ids=lambda file: file.stem)
def test_an_image_is_built_from_the_locks_and_of_nothing_else(file: Path) -> None:
    text = file.read_text("utf-8")
    sections = re.findall(r"^%(\w+)$", text, re.M)
    assert sections == ["files", "post", "environment", "test"]
    assert re.search(r"^    requirements /opt/requirements$", text, re.M)
    torch, others = re.findall(r"^    \S*pip install (.*)$", text, re.M)
    assert torch.endswith("-r /opt/requirements/torch.txt")
    assert others.endswith("--no-deps --require-hashes -r /opt/requirements/run.lock")
    assert "://" not in text  # where packages come from is the user's choice
    (minor,) = set(re.findall(r"python:?3\.(\d+)", text))
    assert PYTHON.first <= (3, int(minor)) <= PYTHON.last
    assert len(text.splitlines()) < 30
    for name in ("torch.txt", "run.lock"):
        assert (ROOT / "requirements" / name).is_file()


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
SEEN = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n1"}


def pinned(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z-]+)==(\S+)", text, re.M))


def test_the_packages_of_the_host_have_the_versions_of_the_lock() -> None:
    lock = pinned((ROOT / "requirements" / "run.lock").read_text("utf-8"))
    host = pinned(HOST.read_text("utf-8"))
    assert host
    assert {name: lock[name] for name in host} == host


def test_begin_and_end_need_few_packages(taking, submit, tmp_path):
    taking.add("scontrol", says="n1\n")
    taking.add("srun")
    assert submit("cluster.jobs=1") == 0
    allowed = ",".join([
        *(name if name != "pyyaml" else "yaml" for name in pinned(HOST.read_text("utf-8"))),
        *("pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"),
    ])

    def on_host(*words: str) -> subprocess.CompletedProcess[str]:
        only = [sys.executable, "-c", ONLY, allowed, *words]
        seen = os.environ | SEEN
        return subprocess.run(only, cwd=ROOT, env=seen, capture_output=True, text=True)

    began = on_host("cluster.begin", f"{tmp_path}/run")
    assert (began.returncode, began.stderr) == (0, "job 77, attempt 0: from 0 tokens on n1\n")
    ended = on_host("cluster.end", f"{tmp_path}/run", "9")
    assert ended.returncode == 9
    assert "failed: exit status 9, and no rank reported an error" in ended.stderr
    assert "the host has no torch" in on_host("torch").stderr
