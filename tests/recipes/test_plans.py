"""The plan of every recipe on its home cluster, and what may and may not move it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ledger.proofs import plan_at_home
from command.actions.plan import run
from command.arguments import read_point
from command.main import main
from command.perform import run_action
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from tests.recipes.compositions import RECIPES, at_home, composed, plan_tree
from tests.recipes.golden_files import check_table

ROOT = Path(__file__).resolve().parents[2]
PLANS = Path(__file__).parent / "plans.csv"
COLUMNS = (
    "recipe", "cluster", "nodes", "peak_gib", "usable_gib", "verdict", "step_seconds", "mfu",
    "device_hours", "energy_kwh", "days",
)  # fmt: skip


def plan_row(name: str) -> dict[str, str]:
    """Round to four digits: more than the prediction has."""
    plan = plan_at_home(name)
    memory, time, bill = plan["memory"], plan["time"], plan["bill"]
    cells = (
        name,
        plan["cluster"],
        plan["layout"]["nodes"],
        memory["peak_bytes"] / 2**30,
        memory["usable_bytes"] / 2**30,
        memory["verdict"],
        time["step_seconds"],
        time["mfu_full"],
        bill["device_hours"],
        bill["energy_kwh"],
        bill["days"],
    )
    texts = (f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells)
    return dict(zip(COLUMNS, texts, strict=True))


def test_every_plan_is_its_row_of_the_golden_table() -> None:
    check_table(PLANS, [plan_row(name) for name in RECIPES], ("recipe",))


def predictions(recipe: Recipe) -> Any:
    tree = plan_tree(recipe)
    return {key: tree[key] for key in ("memory", "time", "bill", "missing")}


def test_a_new_name_and_other_published_figures_change_no_prediction() -> None:
    recipe = at_home("teuken7b")
    tree = recipe.model_dump(mode="json")
    tree["name"], tree["description"], tree["cluster"]["name"] = "other", "other", "other"
    tree["published"] = {
        name: {**item, "value": 7} for name, item in reversed(tree["published"].items())
    }
    tree["assumed"] = {}
    assert predictions(check_recipe(tree)) == predictions(recipe)


def test_the_json_object_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["recipe=bloom176b", "cluster=jean_zay", "action=plan", "output=json"]
    assert run_action("plan", read_point(words)).status == 0
    tree = json.loads(capsys.readouterr().out)
    assert {"peak_bytes", "device_bytes", "verdict", "by_stage"} <= tree["memory"].keys()
    rates = {"step_seconds", "tokens_per_second_per_device", "mfu_full", "mfu_causal", "hfu"}
    assert rates <= tree["time"].keys()
    watts = tree["time"]["joules_per_token"] * tree["time"]["tokens_per_second_per_device"]
    assert watts == pytest.approx(400)  # the rated power of an A100
    assert {"device_hours", "energy_kwh", "days", "jobs", "steps"} <= tree["bill"].keys()
    parts = ("useful", "checkpoint", "failure", "evaluation", "chain")
    days = sum(tree["bill"][f"{part}_days"] for part in parts)
    assert days == pytest.approx(tree["bill"]["days"])
    assert tree["published"]["step_seconds"]["deviation"] == pytest.approx(
        tree["time"]["step_seconds"] / 105 - 1
    )
    assert {"assumed", "missing"} <= tree.keys()


def test_without_a_cluster_the_plan_is_of_the_home(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["recipe=teuken7b", "action=plan"]
    assert run_action("plan", read_point([*words, "output=json"])).status == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["cluster"], tree["scale"]) == ("juwels", "full")
    assert tree == plan_at_home("teuken7b")
    run(read_point(words))
    assert capsys.readouterr().out.startswith("teuken7b on juwels, scale=full\n")


def test_counted_values_are_next_to_published_values() -> None:
    tree = plan_tree(at_home("bloom176b"))
    published, written = tree["published"], tree["bill"]["checkpoints"]
    beside = {name: published[name]["predicted"] for name in ("parameters", "devices", "steps")}
    assert beside == {"parameters": 176_247_271_424, "devices": 384, "steps": 95_000}
    for figure, own in (("bytes", written["bytes"]), ("seconds", written["write_seconds"])):
        item = published[f"checkpoint_{figure}"]
        assert item["predicted"] == own == pytest.approx(item["value"], rel=2e-3)
    assert "predicted" not in published["spare_devices"]
    half = plan_tree(at_home("playbook80b", "parallelism.data=2"))["published"]
    assert half["devices"]["deviation"] == -0.5


@pytest.mark.parametrize("name", ["bloom176b", "mula7b_a1b"])
def test_published_figures_are_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = at_home(name)
    words = [f"recipe={name}", f"cluster={recipe.cluster.name}"]
    for asked in (["action=plan"], ["action=show"], ["action=show", "full=true"]):
        assert run_action(asked[0].partition("=")[2], read_point([*words, *asked])).status == 0
        shown = {word.rstrip(":") for word in capsys.readouterr().out.split()}
        assert set(recipe.published) <= shown, asked


def test_tables_show_stages_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["recipe=bloom1b7", "cluster=jean_zay_v100", "action=plan"]
    run(read_point([*words, "cluster.hardware.gemm_teraflops={}"]))
    shown = capsys.readouterr().out
    assert "not predicted: see Missing" in shown
    missing = shown.partition("\nMissing\n")[2]
    assert "\ncluster.hardware.gemm_teraflops.float16 " in missing
    run(read_point(["recipe=gpt20b", "cluster=smng_p2", "action=plan"]))
    shown = capsys.readouterr().out
    assert "HFU, full attention, with recomputation" in shown
    assert "finish if started now" in shown
    assert "█" in shown


def what_was_done(out: str, figure: str) -> str:
    """Join the lines of a row of the table of what is missing, in its second column."""
    head, *lines = out.partition("\nMissing\n")[2].splitlines()
    start, end = head.index("effect on the plan"), head.index("how to measure")
    row = next(place for place, line in enumerate(lines) if line[:start].strip() == figure)
    cells = [lines[row][start:end]]
    for line in lines[row + 1 :]:
        if line[:start].strip():
            break
        cells.append(line[start:end])
    return " ".join(" ".join(cells).split())


def test_emissions_follow_from_energy_or_are_missing(capsys):
    tree = plan_tree(at_home("bloom176b"))
    bill, found = tree["bill"], tree["bill"]["emissions"]
    assert found["site_kwh"] == pytest.approx(1.2 * bill["energy_kwh"])
    assert found["kg_co2e"] == pytest.approx(0.057 * bill["energy_kwh"])
    assert found["site_kg_co2e"] == pytest.approx(1.2 * 0.057 * bill["energy_kwh"])
    published = tree["published"]
    assert published["kg_co2e"]["deviation"] == pytest.approx(
        published["energy_kwh"]["deviation"], abs=1e-3
    )
    assert "cluster.electricity" not in {one["figure"] for one in tree["missing"]}
    words = ["recipe=teuken7b", "cluster=juwels", "action=plan"]
    run(read_point([*words, "cluster.electricity.grams_co2e_per_kwh=null"]))
    out = capsys.readouterr().out
    assert "CO2e of the devices' energy not known" in " ".join(out.split())
    lacks = "the profile lacks power_usage_effectiveness"
    assert f"{lacks} and grams_co2e_per_kwh, so" in what_was_done(out, "cluster.electricity")
    run(read_point(words))
    out = capsys.readouterr().out
    assert "t, 381 g per kWh" in " ".join(out.split())
    assert f"{lacks}, so" in what_was_done(out, "cluster.electricity")


def test_an_unmeasured_machine_has_no_plan() -> None:
    recipe = composed("bloom560m", "mini")
    message = (
        "there is no measured hardware profile of the cluster 'local'\n .*cluster=jean_zay_v100"
    )
    with pytest.raises(RecipeError, match=message):
        plan_recipe(recipe)


def test_recomputation_counts_only_in_hfu() -> None:
    again = plan_tree(at_home("gpt175b", "model.attention.dropout=0.0"))["time"]
    assert again["hfu"] == pytest.approx(again["mfu_full"] * 4 / 3, rel=0.02)
    once = plan_tree(at_home("playbook1b"))["time"]
    assert once["hfu"] == once["mfu_full"] > once["mfu_causal"]


def test_a_plan_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from command.main import main\n"
        "main(['recipe=mula220b_a10b', 'cluster=aurora', 'action=plan', 'output=json'])\n"
        "assert not {'torch', 'lightning', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


def test_the_cost_is_in_the_sites_unit_and_queues() -> None:
    plan = plan_recipe(at_home("teuken7b"))
    assert plan.cost_estimate is not None
    assert plan.cost_estimate.site_unit == "core-h"
    assert plan.cost_estimate.site_units == pytest.approx(
        plan.cost_estimate.device_hours / 4 * 48
    )
    assert plan.cost_estimate.energy_kwh == pytest.approx(plan.cost_estimate.device_hours * 0.4)
    assert plan.cost_estimate.jobs is not None
    assert (
        24 * (plan.cost_estimate.jobs - 1)
        < plan.cost_estimate.days * 24
        <= 24 * plan.cost_estimate.jobs
    )


TEUKEN = ("recipe=teuken7b", "cluster=juwels", "action=plan")
PROFILE = "cluster.hardware"
INSIDE, ACROSS = (f"{where}.peak_gigabytes_per_second" for where in ("inside", "across"))
WRITTEN, BETWEEN = "storage.write_gigabytes_per_second", "failures.node_hours_between"
POWER = "electricity.power_usage_effectiveness"
POSITIVE = "input should be greater than 0"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("cluster.nodes=0", "cluster.nodes: input should be greater than 0, got 0"),
        ("cluster.nodes=127", "are not a multiple of 127 data ranks"),
        ("parallelism.tensor=3", "parallelism.tensor: 3 does not divide"),
        ("parallelism.pipeline=64", "parallelism.pipeline: "),
        ("parallelism.context=3", "parallelism.context"),
        ("cluster.hardware=none", "cluster.hardware: there is no measured hardware profile"),
        ("cluster.hardware=some", "cluster.hardware: input should be 'none', got 'some'"),
        (f"{PROFILE}.memory_bytes=0", f"{PROFILE}.memory_bytes: {POSITIVE}, got 0"),
        (f"{PROFILE}.{INSIDE}=-1", f"{PROFILE}.{INSIDE}: {POSITIVE}, got -1"),
        (f"cluster.{WRITTEN}=0", f"cluster.{WRITTEN}: {POSITIVE}, got 0"),
        (f"cluster.{BETWEEN}=-5", f"cluster.{BETWEEN}: {POSITIVE}, got -5"),
        (f"cluster.{POWER}=0.9", f"cluster.{POWER}: input should be greater than or equal"),
        ("cluster.waiting_hours=-1", "cluster.waiting_hours: input should be greater"),
        ("checkpoint.every_tokens=0", f"checkpoint.every_tokens: {POSITIVE}, got 0"),
        ("cluster.storage.speed=3", "cluster.storage.speed: unknown key"),
    ],
)
def test_a_wrong_value_is_named_once(word, message, capsys):
    assert main([*TEUKEN, word]) == 2
    seen = capsys.readouterr()
    assert message in seen.err
    assert seen.err.count("cluster.hardware") <= 1
    assert seen.out == ""


@pytest.mark.parametrize(
    ("word", "figure", "how"),
    [
        ("gemm_teraflops={}", "gemm_teraflops.bfloat16", "time torch.mm"),
        (f"{INSIDE}=null", INSIDE, "measure it with nccl-tests"),
        (f"{ACROSS}=null", ACROSS, "measure it with nccl-tests"),
    ],
)
def test_without_a_rate_the_plan_has_memory_and_a_remedy(
    word: str, figure: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TEUKEN, f"{PROFILE}.{word}", "output=json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    first = tree["missing"][0]
    assert first["figure"] == f"{PROFILE}.{figure}"
    assert first["remedy"].startswith(how)
    assert tree["memory"]["verdict"] == "fits"
    assert tree["time"]["step_seconds"] is None
    assert set(tree["bill"].values()) == {None}


def test_a_sweep_plans_its_legal_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *TEUKEN, "parallelism.tensor=2,3", "output=json"]) == 2
    seen = capsys.readouterr()
    assert json.loads(seen.out)["layout"]["tensor"] == 2
    assert "parallelism.tensor=3 output=json] parallelism.tensor: 3 does not" in seen.err
