"""All files have the same range of torch and of Python."""

import re
import tomllib

from components.versions import LOCKED, PYTHON, TORCH, TORCH_RELEASES
from tests.house.test_house import ROOT, SOURCES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def dotted(release: tuple[int, int]) -> str:
    return "{}.{}".format(*release)


def test_readme_and_pages_have_the_range() -> None:
    for page in ("README.md", "docs/versions.md"):
        assert str(PYTHON) in read(page), page
        assert str(TORCH) in read(page), page
    assert str(PYTHON) in read("docs/start.md")


def test_the_project_file_requires_the_range() -> None:
    assert PROJECT["requires-python"] == f">={dotted(PYTHON.first)}"
    pythons = [f"3.{minor}" for minor in range(PYTHON.first[1], PYTHON.last[1] + 1)]
    assert PROJECT["classifiers"] == [
        f"Programming Language :: Python :: {python}" for python in pythons
    ]
    major, minor = TORCH.last
    wanted = f"torch>={dotted(TORCH.first)},<{major}.{minor + 1}"
    assert PROJECT["optional-dependencies"]["torch"] == [wanted]


def test_the_locked_torch_is_tested() -> None:
    assert read("requirements/torch.txt").strip() == f"torch=={LOCKED}"
    assert LOCKED in TORCH_RELEASES


def test_the_tools_check_for_the_oldest_python() -> None:
    assert f'python_version = "{dotted(PYTHON.first)}"' in read("pyproject.toml")
    assert f"--python-version {dotted(PYTHON.first)}" in read("Makefile")


def test_no_code_compares_versions_by_itself() -> None:
    own = re.compile(r"version_info\s*[<>\[]|__version__[^\n]*split")
    found = {
        str(file.relative_to(ROOT)) for file in SOURCES if own.search(file.read_text("utf-8"))
    }
    assert found - {"cluster/staging.py"} == set()  # it names this machine's Python
