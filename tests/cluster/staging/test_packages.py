"""Wheels for another machine: its own pins, sources built here, nothing that differs."""

import hashlib
import io
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.staging import Target, fetch_packages, pins_for, without_hashes
from components.errors import RecipeError
from tests.cluster.jobs import ROOT

SETUP = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{name}"
version = "1.0"
"""
EXTENSION = """from setuptools import Extension, setup
setup(ext_modules=[Extension("{name}_c", ["{name}.c"])])
"""
MODULE = """#include <Python.h>
static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}_c"}};
PyObject *PyInit_{name}_c(void) {{ return PyModule_Create(&module); }}
"""


def write_wheel(
    folder: Path, name: str, version: str = "1.0", tag: str = "py3-none-any"
) -> Path:
    """Write a wheel with one module, as pip takes it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", "VALUE = 1\n")
        for record, text in (
            ("METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
            ("WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"),
            ("RECORD", ""),
        ):
            archive.writestr(f"{name}-{version}.dist-info/{record}", text)
    return file


def write_source(folder: Path, name: str, *, compiled: bool = False) -> Path:
    """Write a source distribution, of Python alone or with a module in C."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"pyproject.toml": SETUP.format(name=name), f"{name}.py": "VALUE = 1\n"}
    if compiled:
        files["setup.py"] = EXTENSION.format(name=name)
        files[f"{name}.c"] = MODULE.format(name=name)
    file = folder / f"{name}-1.0.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return file


def entry(file: Path, marker: str = "") -> str:
    """Return the lines of a lock that pin this archive."""
    name, version = file.name.removesuffix(".tar.gz").split("-")[:2]
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    condition = f" ; {marker}" if marker else ""
    return f"{name}=={version}{condition} \\\n    --hash=sha256:{digest}\n"


Fetch = Callable[[str, Target], list[str]]


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
def fetch(tmp_path: Path) -> Fetch:
    """Fetch what a lock pins, and name the wheels."""

    def fetch(lock: str, machine: Target) -> list[str]:
        shutil.rmtree(tmp_path / "stage", ignore_errors=True)
        (tmp_path / "run.lock").write_text(lock)
        (tmp_path / "torch.txt").write_text("torch==2.13.0\n")
        found = fetch_packages(tmp_path, ["run.lock"], machine, tmp_path / "stage")
        return [wheel.name for wheel in found]

    return fetch


def pinned(*wheels: Path) -> str:
    """Pin one version, whichever of these wheels serves."""
    name = entry(wheels[0]).splitlines()[0].removesuffix(" \\")
    return " \\\n".join([name, *(entry(one).splitlines()[1] for one in wheels)]) + "\n"


@pytest.mark.long
def test_wheels_are_the_targets_and_not_this_machines(index: Path, fetch: Fetch) -> None:
    tags = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "manylinux2014_aarch64")
    intel, arm, older = (write_wheel(index, "fast", tag=f"cp313-cp313-{tag}") for tag in tags)
    other = write_wheel(index, "fast", tag="cp311-cp311-manylinux_2_17_x86_64")
    lock = pinned(intel, arm, older, other)
    assert fetch(lock, target("3.13")) == [intel.name]
    assert fetch(lock, target("3.13", "aarch64")) == [arm.name]
    arm.unlink()
    older.unlink()
    with pytest.raises(RecipeError, match=r"No matching distribution found for fast"):
        fetch(lock, target("3.13", "aarch64"))


@pytest.mark.long
def test_pins_match_the_python_of_the_target(index: Path, fetch: Fetch) -> None:
    markers = {
        "3.6": "python_full_version < '3.12'",
        "3.7": "python_full_version >= '3.12' and sys_platform == 'linux'",
        "3.8": "sys_platform == 'win32'",
    }
    wheels = {version: write_wheel(index, "graph", version) for version in markers}
    lock = "".join(entry(wheels[version], marker) for version, marker in markers.items())
    assert fetch(lock, target("3.12")) == ["graph-3.7-py3-none-any.whl"]


@pytest.mark.long
def test_source_becomes_a_wheel_unless_compiled(index, fetch, tmp_path):
    lock = entry(write_source(index, "plain"))
    assert fetch(lock, target("3.13")) == ["plain-1.0-py3-none-any.whl"]
    assert not list((tmp_path / "stage" / "wheels").glob("*.tar.gz"))
    lock = entry(write_source(index, "native", compiled=True))
    message = r"native-1.0.tar.gz: no wheel exists, and a wheel built"
    with pytest.raises(RecipeError, match=message):
        fetch(lock, target("3.11"))


@pytest.mark.long
def test_another_file_than_the_locked_one_is_refused(index: Path, fetch: Fetch) -> None:
    lock = entry(write_wheel(index, "tool"))
    write_wheel(index, "tool").write_bytes(write_wheel(index / "other", "other").read_bytes())
    with pytest.raises(RecipeError, match=r"pip download: THESE PACKAGES DO NOT MATCH|HASH"):
        fetch(lock, target("3.11"))


def test_error_without_an_index_has_a_remedy(index: Path, fetch: Fetch) -> None:
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
