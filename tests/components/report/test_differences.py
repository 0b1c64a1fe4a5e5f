"""What differs between runs stands under what it decides."""

from typing import Any

from components.report.differences import describe_groups, differences_by_group
from components.report.outcome import load_entries
from tests.components.report.conftest import WriteRun, recipe_tree
from tests.recipes.compositions import at_home


def grouped(*folders: Any) -> dict[str, list[str]]:
    return {
        part.title: [row[0] for row in part.grid.rows]
        for part in differences_by_group(load_entries(folders))
    }


def test_each_key_is_listed_under_its_group(write_run: WriteRun) -> None:
    tree = recipe_tree()
    other = tree | {
        "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95]},
        "parallelism": {"data": 4, "tensor": 1, "pipeline": 1},
        "cluster": {"name": "elsewhere"},
        "reference_cluster": "elsewhere",
        "grandmother": "unknown",
    }
    folders = [write_run("a"), write_run("b", recipe=other)]
    assert grouped(*folders) == {
        "changes the mathematics": ["optimizer.lr"],
        "changes the layout": ["parallelism.data", "parallelism.tensor"],
        "affects only the machine": ["cluster.name"],
        "affects only descriptions and measurements": ["reference_cluster"],
        "from another version of the code": ["grandmother"],
    }
    parts = differences_by_group(load_entries(folders))
    assert describe_groups(parts) == "mathematics: differs, layout: differs, machine: differs"


def test_a_degree_that_changes_what_experts_compute_is_mathematics(write_run: WriteRun) -> None:
    one = at_home("mula7b_a1b").model_dump(mode="json")
    two = one | {"parallelism": one["parallelism"] | {"microbatch_sequences": 7}}
    runs = [write_run("one", recipe=one), write_run("two", recipe=two)]
    assert grouped(*runs) == {"changes the mathematics": ["parallelism.microbatch_sequences"]}


def test_keys_of_another_profile_are_counted_not_listed(write_run: WriteRun) -> None:
    home = at_home("teuken7b").model_dump(mode="json")
    away = home | {"cluster": at_home("bloom7b1").model_dump(mode="json")["cluster"]}
    runs = [write_run("home", recipe=home), write_run("away", recipe=away)]
    [part] = differences_by_group(load_entries(runs))
    assert not [row for row in part.grid.rows if "hardware" in row[0]]
    assert part.hidden > 20


def test_equal_recipes_have_no_table(write_run: WriteRun) -> None:
    entries = load_entries([write_run(str(place)) for place in range(3)])
    assert differences_by_group(entries[:1]) == differences_by_group(entries) == []
    assert describe_groups(()) == "mathematics: the same, layout: the same, machine: the same"
