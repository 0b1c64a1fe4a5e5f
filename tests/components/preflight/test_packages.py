"""Versions on this node against those that the run was made with, or the lock's."""

import platform
from importlib.metadata import version

import pytest

from components.preflight import node_checks
from components.preflight.node_checks import check_packages, check_versions, expected_versions
from components.run.folder import RunFolder
from components.run.provenance import describe_software
from components.versions import PYTHON, TORCH


def write(folder: RunFolder, packages: dict[str, str], python: str) -> None:
    folder.write_json("software.json", {"python": python, "packages": packages})


def test_the_packages_that_a_run_was_made_with_are_as_expected(folder: RunFolder) -> None:
    folder.write_json("software.json", describe_software().model_dump(mode="json"))
    found = check_packages(folder, ["run"])
    assert (found.verdict, found.rule) == ("ok", "software.json")


@pytest.mark.parametrize(
    ("packages", "python", "said"),
    [
        ({"numpy": "0.0.1"}, platform.python_version(), "numpy {numpy}, not 0.0.1"),
        ({"gone-away": "1.0"}, platform.python_version(), "gone-away absent, not 1.0"),
        ({}, "2.7.18", "python {python}, not 2.7.18"),
    ],
)
def test_another_version_is_named_beside_the_one_expected(
    folder: RunFolder, packages: dict[str, str], python: str, said: str
) -> None:
    write(folder, packages, python)
    found = check_packages(folder, ["run"])
    here = {"numpy": version("numpy"), "python": platform.python_version()}
    assert (found.verdict, found.found) == ("bad", said.format(**here))


def test_of_many_other_versions_three_are_named(folder: RunFolder) -> None:
    write(folder, {f"gone-{n}": "1" for n in range(5)}, platform.python_version())
    assert check_packages(folder, ["run"]).found.endswith("gone-2 absent, not 1 and 2 more")


def test_what_the_run_was_made_without_may_be_here(folder: RunFolder) -> None:
    write(folder, {"numpy": "absent"}, platform.python_version())
    assert check_packages(folder, ["run"]).verdict == "ok"


def test_what_no_rank_of_the_run_imports_may_be_missing(folder: RunFolder) -> None:
    write(folder, {"torchao": "0", "datatrove": "0"}, platform.python_version())
    assert check_packages(folder, ["run"]).verdict == "ok"
    found = check_packages(folder, ["run", "fp8"])
    assert (found.verdict, found.found) == ("bad", f"torchao {version('torchao')}, not 0")


def test_without_a_run_the_locks_lines_for_this_python_count(folder: RunFolder) -> None:
    expected, where = expected_versions(folder, ["run"])
    assert where == "requirements"
    assert expected["hydra-core"] == "1.3.8"
    assert "torch" not in expected  # the site's own wins
    assert "deepspeed" not in expected
    assert expected_versions(folder, ["run", "deepspeed"])[0]["deepspeed"] == "0.19.8"
    assert expected_versions(folder, ["run", "fp8"])[0]["torchao"] == "0.18.0"
    # The lock has two lines of numpy, by Python's version.
    new = tuple(map(int, platform.python_version_tuple()[:2])) >= (3, 12)
    assert expected["numpy"].startswith("2.5" if new else "2.4")


@pytest.mark.parametrize(
    ("torch", "python", "verdict"),
    [
        ("2.13.0+cpu", "3.12.3", "ok"),
        ("2.9.1", "3.12.3", "bad"),
        ("2.10.0a0+git449b176", "3.10.2", "bad"),
        ("2.16.0", "3.12.3", "unknown"),
        ("2.9.1", "3.14.0", "bad"),
    ],
)
def test_torch_and_python_outside_the_range_are_found(
    torch: str, python: str, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        node_checks, "read_installed_versions", lambda: {PYTHON: python, TORCH: torch}
    )
    found = check_versions()
    assert found.verdict == verdict
    assert found.found == f"Python {python}, torch {torch}"
    assert found.expected == f"{TORCH}, {PYTHON}"
