from pathlib import Path

import pytest

from benchmarks.versions import versions
from benchmarks.versions.environments import (
    ENVIRONMENTS,
    REFERENCE,
    build_environment,
    select_environments,
)
from benchmarks.versions.versions import (
    has_passed,
    loss_gap,
    render_table,
    row_cells,
    run_check,
    write_page,
)
from components.errors import RecipeError
from components.versions import PYTHON, TORCH, TORCH_RELEASES, release_of

PROOF = {"holds": True, "loss": 1e-15, "gradient_norm": 0.0, "gradient": 2e-15, "weight": 0.0}
ROW = {
    "name": "2.11.0-py3.11",
    "versions": {"torch": "2.11.0+cu130", "python": "3.11.7"},
    "train": 3e-7,
    "resume": 0.0,
    "moved": 0.0,
    "parity": [PROOF],
    "tests": {"passed": 1_000, "skipped": 9, "failed": 0, "failures": []},
}


def test_the_tested_releases_are_the_ends_of_the_supported_range() -> None:
    releases = [release_of(torch) for torch in TORCH_RELEASES]
    assert (releases[0], releases[-1]) == (TORCH.first, TORCH.last)
    assert REFERENCE in ENVIRONMENTS
    pythons = {release_of(environment.python) for environment in ENVIRONMENTS}
    assert (min(pythons), max(pythons)) == (PYTHON.first, PYTHON.last)


def test_environments_are_chosen_by_torch_or_by_torch_and_python() -> None:
    assert list(select_environments([])) == list(ENVIRONMENTS)
    assert [environment.name for environment in select_environments(["2.11.0"])] == [
        "2.11.0-py3.11"
    ]
    newest = [tried for tried in ENVIRONMENTS if tried.torch == TORCH_RELEASES[-1]]
    assert list(select_environments([TORCH_RELEASES[-1]])) == newest
    assert list(select_environments([newest[-1].name])) == newest[-1:]
    with pytest.raises(RecipeError, match=r"'1\.0\.0' is not tested\n  choose from 2\.10\."):
        list(select_environments(["1.0.0"]))


def test_a_missing_python_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RecipeError, match=r"this machine has no python3\.11"):
        build_environment(REFERENCE)


def test_an_environment_with_the_same_locks_is_not_rebuilt(monkeypatch, tmp_path):
    from benchmarks.versions.environments import hash_locks

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    REFERENCE.folder.mkdir(parents=True)
    (REFERENCE.folder / "ready").write_text(hash_locks())
    build_environment(REFERENCE)


def test_the_difference_of_losses_is_that_of_the_worst_step() -> None:
    assert loss_gap([2.0, 4.0], [2.0, 4.4]) == pytest.approx(1 / 11)
    with pytest.raises(ValueError, match="longer"):
        loss_gap([2.0], [2.0, 4.0])


def test_a_failed_check_is_stored_as_an_error_and_does_not_pass() -> None:
    def fail() -> None:
        raise RuntimeError("no")

    finding = run_check(fail)
    assert finding == {"error": "no"}
    assert row_cells(ROW | {"train": finding})[2] == "FAILS"
    assert not has_passed(ROW | {"train": finding})


@pytest.mark.parametrize(
    "worse",
    [
        {"train": 1e-3},
        {"resume": 1e-9},
        {"moved": 1e-3},
        {"parity": [PROOF | {"holds": False}]},
        {"tests": {"passed": 1, "skipped": 0, "failed": 1, "failures": ["a::b"]}},
    ],
)
def test_a_row_passes_only_if_all_its_findings_do(worse: dict[str, object]) -> None:
    assert has_passed(ROW)
    assert not has_passed(ROW | worse)


def test_the_page_has_sorted_rows_and_its_other_text(monkeypatch, tmp_path):
    page = tmp_path / "versions.md"
    marks = "<!-- versions: written by `make versions` -->\n", "<!-- end of versions -->\n"
    page.write_text(f"above\n{marks[0]}old\n{marks[1]}below\n")
    monkeypatch.setattr(versions, "PAGE", page)
    later = ROW | {"name": "2.15.0-py3.12", "tests": ROW["tests"]}
    write_page([later, ROW])
    text = page.read_text()
    assert text.startswith("above\n")
    assert text.endswith("below\n")
    assert "old" not in text
    line = (
        "| 2.11.0+cu130 | 3.11.7 | 3e-07 | equal | equal | 2e-15 "
        "| 1,000 passed, 9 skipped, 0 failed |"
    )
    assert text.count(line) == 2


def test_a_missing_check_is_a_dash_and_a_failed_test_is_listed() -> None:
    failing = {"passed": 1, "skipped": 0, "failed": 1, "failures": ["a::b"]}
    row = {**{key: ROW[key] for key in ("name", "versions", "train")}, "tests": failing}
    text = render_table([row])
    assert "| 3e-07 | - | - | - | 1 passed, 0 skipped, 1 failed |" in text
    assert "- 2.11.0-py3.11: `a::b` fails" in text
