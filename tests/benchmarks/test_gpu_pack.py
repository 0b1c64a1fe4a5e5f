"""What is packed for a GPU machine has the locks' versions, and never more than may travel."""

from pathlib import Path

import pytest

from benchmarks.gpu import pack
from benchmarks.gpu.pack import check_size, locked_versions, tree_bytes, wanted
from components.errors import RecipeError


def test_packages_have_the_versions_of_the_locks_for_that_python() -> None:
    found = {one.name: str(one.specifier) for one in wanted("3.12")}
    assert found["hydra-core"] == "==1.3.8"
    assert found["torchtitan"] == "==0.2.2"
    assert not {"plotly", "optuna", "tensorboard", "torch"} & set(found)
    old, new = (str(locked_versions(python)["numpy"]) for python in ("3.11", "3.12"))
    assert old != new  # by the markers of the lock


def test_a_package_without_a_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tmp_path / "gpu.txt"
    names.write_text("# a comment\nnobodys-package\n")
    monkeypatch.setattr(pack, "NAMES", names)
    with pytest.raises(RecipeError, match=r"gpu\.txt: nobodys-package has no version"):
        list(wanted("3.12"))


def test_more_than_may_travel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"0" * 1_000)
    whole = tree_bytes() + 1_000
    assert check_size(tmp_path, most=whole) == whole
    with pytest.raises(RecipeError, match="MB of checkout are more than"):
        check_size(tmp_path, most=whole - 1)
