"""``make test ROOMS=changed`` runs the tests that a diff can break."""

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
def test_a_file_selects_the_tests_of_its_package_and_of_its_importers(changed, expected):
    found = set(select([changed]))
    assert found >= expected | {ALWAYS}
    assert "tests" not in found


def test_a_shared_file_selects_all_tests() -> None:
    assert select(["docs/speed.md", "pyproject.toml"]) == ["tests"]


def test_a_module_selects_no_tests_of_unrelated_rooms() -> None:
    found = select(["components/data/order.py"])
    assert "tests/components/data" in found
    assert not any(path.startswith(("tests/cluster", "tests/attack")) for path in found)


def test_a_selected_folder_replaces_its_files() -> None:
    found = select(["components/model/moe.py", "tests/components/model/test_moe.py"])
    assert "tests/components/model" in found
    assert "tests/components/model/test_moe.py" not in found
