from pathlib import Path

import pytest

from benchmarks.versions import page as versions_page
from benchmarks.versions.environments import ENVIRONMENTS, REFERENCE, build, chosen
from benchmarks.versions.page import cells, holds, table, write_page
from benchmarks.versions.versions import apart, found_by
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


def test_the_tried_releases_are_the_ends_of_the_range_and_lie_within() -> None:
    releases = [release_of(torch) for torch in TORCH_RELEASES]
    assert (releases[0], releases[-1]) == (TORCH.first, TORCH.last)
    assert REFERENCE in ENVIRONMENTS
    pythons = {release_of(one.python) for one in ENVIRONMENTS}
    assert (min(pythons), max(pythons)) == (PYTHON.first, PYTHON.last)


def test_environments_are_chosen_by_torch_or_by_torch_and_python() -> None:
    assert list(chosen([])) == list(ENVIRONMENTS)
    assert [one.name for one in chosen(["2.11.0"])] == ["2.11.0-py3.11"]
    newest = [one for one in ENVIRONMENTS if one.torch == TORCH_RELEASES[-1]]
    assert list(chosen([TORCH_RELEASES[-1]])) == newest
    assert list(chosen([newest[-1].name])) == newest[-1:]


def test_what_is_not_tried_is_refused_with_what_is() -> None:
    with pytest.raises(RecipeError, match=r"'1\.0\.0' is not tried\n  choose of 2\.10\.0-py3"):
        list(chosen(["1.0.0"]))


def test_a_python_that_is_not_here_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RecipeError, match=r"there is no python3\.11 here"):
        build(REFERENCE)


def test_an_environment_that_has_these_locks_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from benchmarks.versions.environments import digest

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    REFERENCE.folder.mkdir(parents=True)
    (REFERENCE.folder / "ready").write_text(digest())
    build(REFERENCE)


def test_losses_differ_by_the_worst_step_and_want_as_many() -> None:
    assert apart([2.0, 4.0], [2.0, 4.4]) == pytest.approx(1 / 11)
    with pytest.raises(ValueError, match="longer"):
        apart([2.0], [2.0, 4.0])


def test_what_fails_is_kept_as_an_error_and_does_not_hold() -> None:
    def fails() -> None:
        raise RuntimeError("no")

    found = found_by(fails)
    assert found == {"error": "no"}
    assert cells(ROW | {"train": found})[2] == "FAILS"
    assert not holds(ROW | {"train": found})


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
def test_a_row_holds_unless_one_of_its_findings_does_not(worse: dict[str, object]) -> None:
    assert holds(ROW)
    assert not holds(ROW | worse)


def test_the_page_has_a_line_a_row_in_the_order_of_versions_and_keeps_its_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "versions.md"
    page.write_text(f"above\n{versions_page.BEGIN}old\n{versions_page.END}below\n")
    monkeypatch.setattr(versions_page, "PAGE", page)
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


def test_what_was_not_tried_is_a_dash_and_a_failing_test_is_named() -> None:
    failing = {"passed": 1, "skipped": 0, "failed": 1, "failures": ["a::b"]}
    row = {**{key: ROW[key] for key in ("name", "versions", "train")}, "tests": failing}
    said = table([row])
    assert "| 3e-07 | - | - | - | 1 passed, 0 skipped, 1 failed |" in said
    assert "- 2.11.0-py3.11: `a::b` fails" in said
