"""``make test ROOMS=changed`` runs what a diff can have broken."""

import pytest

from tests.changed import ALWAYS, select


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("components/model/moe.py", {"tests/components/model"}),
        ("components/model/moe.py", {"tests/components/distributed/test_experts.py"}),
        ("components/distributed/__init__.py", {"tests/components/distributed"}),
        (
            "tests/components/distributed/experts_cases.py",
            {"tests/components/distributed/test_experts.py"},
        ),
        ("conf/cluster/juwels.yaml", {"tests/cluster", "tests/recipes"}),
        ("tests/attack/cases/run.yaml", {"tests/attack"}),
        ("docs/speed.md", set()),
    ],
)
def test_a_file_selects_the_tests_of_its_package_and_of_its_importers(
    changed: str, expected: set[str]
) -> None:
    found = set(select([changed]))
    assert found >= expected | {ALWAYS}
    assert "tests" not in found


def test_what_all_rests_on_selects_all() -> None:
    assert select(["docs/speed.md", "pyproject.toml"]) == ["tests"]


def test_a_module_of_one_room_leaves_others_alone() -> None:
    found = select(["components/data/order.py"])
    assert "tests/components/data" in found
    assert not any(one.startswith(("tests/cluster", "tests/attack")) for one in found)


def test_no_file_is_named_within_a_folder_that_is_named() -> None:
    found = select(["components/model/moe.py", "tests/components/model/test_moe.py"])
    assert "tests/components/model" in found
    assert "tests/components/model/test_moe.py" not in found
