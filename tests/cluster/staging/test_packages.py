"""Wheels for another machine: its own pins, sources built here, nothing that differs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.staging import Target, fetch_packages, pins_for, without_hashes
from components.errors import RecipeError
from tests.cluster.jobs import ROOT
from tests.cluster.staging.archives import entry, write_source, write_wheel

Lock = Callable[[str], list[str]]


def target(python: str, architecture: str = "x86_64") -> Target:
    return Target(python=python, provided=("torch",), architecture=architecture)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path / "index"


@pytest.fixture
def fetch(tmp_path: Path) -> Callable[[str, Target], list[str]]:
    """Fetch what a lock pins, and name the wheels."""

    def fetch(lock: str, machine: Target) -> list[str]:
        (tmp_path / "run.lock").write_text(lock)
        (tmp_path / "torch.txt").write_text("torch==2.13.0\n")
        found = fetch_packages(tmp_path, ["run.lock"], machine, tmp_path / "stage")
        return [wheel.name for wheel in found]

    return fetch


@pytest.mark.long
def test_the_wheels_are_the_targets_and_not_this_machines(
    index: Path, fetch: Callable[[str, Target], list[str]]
) -> None:
    old = write_wheel(index, "fast", tag="cp311-cp311-manylinux_2_17_x86_64")
    new = write_wheel(index, "fast", tag="cp312-cp312-manylinux_2_28_x86_64")
    assert fetch(pinned(old, new), target("3.12")) == [new.name]


def pinned(*wheels: Path) -> str:
    """Pin one version, whichever of these wheels serves."""
    name, hashes = (
        entry(wheels[0]).splitlines()[0],
        [entry(one).splitlines()[1] for one in wheels],
    )
    return " \\\n".join([name.removesuffix(" \\"), *hashes]) + "\n"


@pytest.mark.long
def test_for_arm_nodes_wheels_are_arms(
    index: Path, fetch: Callable[[str, Target], list[str]]
) -> None:
    tags = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "manylinux2014_aarch64")
    intel, arm, older = (write_wheel(index, "fast", tag=f"cp313-cp313-{tag}") for tag in tags)
    lock = pinned(intel, arm, older)
    assert fetch(lock, target("3.13", "aarch64")) == [arm.name]
    arm.unlink()
    older.unlink()
    with pytest.raises(RecipeError, match=r"No matching distribution found for fast"):
        fetch(lock, target("3.13", "aarch64"))


@pytest.mark.long
def test_pins_are_those_of_the_targets_python(
    index: Path, fetch: Callable[[str, Target], list[str]]
) -> None:
    lock = "".join(
        entry(write_wheel(index, "graph", version), marker)
        for version, marker in (
            ("3.6", "python_full_version < '3.12'"),
            ("3.7", "python_full_version >= '3.12' and sys_platform == 'linux'"),
            ("3.8", "sys_platform == 'win32'"),
        )
    )
    assert fetch(lock, target("3.12")) == ["graph-3.7-py3-none-any.whl"]


@pytest.mark.long
def test_a_source_of_python_alone_becomes_a_wheel(
    index: Path, fetch: Callable[[str, Target], list[str]], tmp_path: Path
) -> None:
    lock = entry(write_source(index, "plain"))
    assert fetch(lock, target("3.13")) == ["plain-1.0-py3-none-any.whl"]
    assert not list((tmp_path / "stage" / "wheels").glob("*.tar.gz"))


@pytest.mark.long
def test_what_must_be_compiled_on_the_target_is_refused(
    index: Path, fetch: Callable[[str, Target], list[str]]
) -> None:
    lock = entry(write_source(index, "native", compiled=True))
    with pytest.raises(
        RecipeError, match=r"native-1.0.tar.gz: no wheel exists, and a wheel built"
    ):
        fetch(lock, target("3.11"))


@pytest.mark.long
def test_another_file_than_the_locked_one_is_refused(
    index: Path, fetch: Callable[[str, Target], list[str]]
) -> None:
    lock = entry(write_wheel(index, "tool"))
    write_wheel(index, "tool").write_bytes(write_wheel(index / "other", "other").read_bytes())
    with pytest.raises(RecipeError, match=r"pip download: THESE PACKAGES DO NOT MATCH|HASH"):
        fetch(lock, target("3.11"))


def test_without_an_index_the_way_out_is_said(
    index: Path, fetch: Callable[[str, Target], list[str]]
) -> None:
    index.mkdir()
    lock = entry(write_wheel(index.parent / "elsewhere", "absent"))
    with pytest.raises(RecipeError, match=r"No matching distribution(.|\n)*with internet"):
        fetch(lock, target("3.11"))


@pytest.mark.parametrize(("python", "networkx"), [("3.11", "3.6.1"), ("3.12", "3.7")])
def test_the_projects_own_lock_has_one_pin_a_package(python: str, networkx: str) -> None:
    constraints = without_hashes(pins_for(ROOT / "requirements" / "run.lock", python))
    names = [line.partition("==")[0] for line in constraints.splitlines()]
    assert len(names) == len(set(names)) > 50
    assert f"networkx=={networkx}" in constraints.splitlines()
    assert "colorama" not in names
