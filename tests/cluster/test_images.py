"""Definitions of images: one for each kind of GPU of a profile, built from the locks."""

import re
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
