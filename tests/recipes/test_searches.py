"""What a search finds for two recipes on machines of others, and how it is said."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.actions.plan import run
from command.arguments import read_point
from command.composition.compose import compose_run
from command.composition.layout_search import SearchResult
from command.perform import run_action
from components.planner.plan import plan_layouts, plan_recipe, step_parts
from components.planner.result import LayoutPlans
from tests.recipes.compositions import at_home
from tests.recipes.golden_files import check_text

SEARCHES = Path(__file__).parent / "searches"
ABROAD = [("teuken7b", "aurora"), ("mula220b_a10b", "juwels")]
NODES = {"aurora": ("cluster.nodes=16",)}  # without: several searches, to choose the nodes


@cache
def searched(name: str, cluster: str, *words: str) -> SearchResult:
    point = [f"recipe={name}", f"cluster={cluster}", "parallelism=auto"]
    point += [*NODES.get(cluster, ()), *words]
    found = compose_run(read_point(point)).search
    assert found is not None
    return found


def rounded(value: Any) -> Any:
    """Round what is predicted to four digits: more than the prediction has."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def found_abroad(name: str, cluster: str, *words: str) -> LayoutPlans:
    found = searched(name, cluster, *words)
    return plan_layouts(found.search, found.recipe, found.published, found.refusal)


@pytest.mark.quick("teuken7b-aurora")
@pytest.mark.parametrize(("name", "cluster"), ABROAD)
def test_a_search_on_another_machine_equals_its_golden_file(name: str, cluster: str) -> None:
    tree = found_abroad(name, cluster).as_json()
    assert tree.pop("seconds") > 0
    tree["best"] = list(map(plan_line, tree["best"]))
    tree["paper"] = plan_line(tree["paper"])
    text = yaml.safe_dump(rounded(tree), sort_keys=False, width=1_000, default_flow_style=None)
    check_text(SEARCHES / f"{name}_{cluster}.yaml", text)


def plan_line(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan of a layout without nested values: the golden file has it on a line."""
    flat = {key: value for key, value in plan.items() if key not in {"layout", "parts"}}
    return flat | dict(plan.get("parts", {}))


def test_no_search_is_left_without_its_recipe() -> None:
    assert {file.stem for file in SEARCHES.iterdir()} == {"_".join(pair) for pair in ABROAD}


@pytest.mark.long
def test_plans_print_the_best_ten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.html"
    words = ["recipe=teuken7b", "cluster=juwels", "parallelism=auto", "action=plan"]
    assert run_action("plan", read_point([*words, f"file={file}"])).status == 0
    out = capsys.readouterr().out
    shown = out.partition("\nLayouts found\n")[2].splitlines()
    assert shown[0].startswith("layouts: ")
    assert [line.split()[0] for line in shown[2:13]] == [*map(str, range(1, 11)), "paper"]
    assert shown[13].startswith("a step of ")
    page = file.read_text("utf-8")
    assert "<h2>Layouts found</h2>" in page
    assert "waiting in the pipeline" in page


def test_json_has_the_search_with_the_planned_layout(capsys):
    words = ["recipe=bloom176b", "cluster=jean_zay", "parallelism=auto", "action=plan"]
    run(read_point([*words, "output=json"]))
    tree = json.loads(capsys.readouterr().out)
    search = tree["search"]
    assert search["considered"] >= search["legal"] >= search["fitting"] >= len(search["best"])
    best = search["best"][0]
    assert len(search["best"]) == 10
    assert best["step_seconds"] == tree["time"]["step_seconds"]
    assert best["peak_bytes"] == tree["memory"]["peak_bytes"]
    assert best["days"] == tree["bill"]["days"]
    assert search["paper"]["text"].startswith("data 8 x tensor 4 x pipeline 12, ZeRO 1")
    assert search["why"][0].startswith("a step of ")


def test_a_page_without_a_search_has_no_table_of_layouts(tmp_path: Path) -> None:
    file = tmp_path / "plan.html"
    run(read_point(["recipe=teuken7b", "cluster=juwels", "action=plan", f"file={file}"]))
    assert "Layouts found" not in file.read_text("utf-8")


@pytest.mark.quick("teuken7b-aurora")
@pytest.mark.parametrize(("name", "cluster"), ABROAD)
def test_tensor_ranks_of_a_found_layout_stay_in_a_node(name: str, cluster: str) -> None:
    groups = searched(name, cluster).recipe.rank_groups
    assert groups.find_group("tensor").nodes == 1
    assert groups.find_group("pipeline").nodes > 1


@pytest.mark.parametrize("name", ["teuken7b", "bloom176b", "mula20b_a2b"])
def test_the_parts_of_a_step_add_up(name: str) -> None:
    plan = plan_recipe(at_home(name))
    parts = step_parts(plan)
    assert plan.time is not None
    assert sum(parts.values()) == pytest.approx(plan.time.total_seconds)
    assert min(parts.values()) >= 0


def test_a_published_layout_that_is_best_has_a_note() -> None:
    keys = ["data", "tensor", "pipeline", "zero", "sequence_parallel", "microbatch_sequences"]
    values = [128, 2, 2, 1, "true", 1]
    words = [f"parallelism.{key}={value}" for key, value in zip(keys, values, strict=True)]
    words += ["parallelism.schedule=1f1b", "parallelism.recompute=none"]
    why = found_abroad("teuken7b", "juwels", *words).why
    assert why[0] == "the published layout is the best one found"
