"""A recipe that comes from a run of another: what is settled, and what has to agree."""

from pathlib import Path

import pytest
import yaml

from command.actions.show import as_json
from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.recipe_summary import start_line
from components.config.check import check_recipe, read_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.key_groups import KeyGroup, split_by_group
from components.config.phases import recipe_of
from components.config.recipe import Recipe
from components.config.schema.start import describe_start
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from components.report.plan_tables import time_sheet
from tests.components.config.helpers import refusals, split_words, teuken
from tests.recipes.compositions import at_home, compose

FROM = ("from.recipe=teuken7b", "from.at_tokens=3_000_000_000_000")
RESUMED, WEIGHTS = (*FROM, "from.with=optimizer"), (*FROM, "from.with=weights")
STEP = 4_194_304
LEFT = 3_000_001_101_824  # tokens after the first step that reaches so many


def composed(*words: str) -> Recipe:
    return teuken("scale=full", "cluster=juwels", *words)


def branched() -> Recipe:
    return composed(*RESUMED)


def test_a_recipe_without_a_parent_has_no_start() -> None:
    assert "from" not in composed().model_dump(mode="json")
    assert composed().first_step == 0
    assert not start_line(composed())


def test_the_parents_fingerprint_and_step_are_resolved() -> None:
    child = branched()
    assert LEFT % STEP == 0
    assert LEFT - STEP < 3_000_000_000_000 <= LEFT
    assert as_json(child)["recipe"]["from"] == {  # type: ignore[index]  # a tree
        "recipe": "teuken7b",
        "at_tokens": LEFT,
        "with": "optimizer",
        "fingerprint": compute_fingerprint(composed()),
    }
    assert compute_fingerprint(child) != compute_fingerprint(composed())
    assert child.first_step == LEFT // STEP
    at = "of teuken7b after 3,000,001,101,824 tokens"
    assert start_line(child).startswith(f"all {at}; ")
    assert start_line(composed(*WEIGHTS)) == f"the weights {at}"


def test_a_parents_layout_need_not_fit_the_cluster_of_the_run() -> None:
    """Its 512 ranks do not fill nodes of twelve devices."""
    words = ["cluster=aurora", "parallelism.data=96", "budget.global_batch_tokens=49_152_000"]
    child = compose("lucie_7b_long", *words)
    assert child.start is not None
    assert child.start.fingerprint == compute_fingerprint(at_home("lucie_7b"))


def test_a_start_and_the_last_rewind_are_one_line() -> None:
    assert describe_start(None, None) == ""
    assert describe_start(None, 4_096) == "rolled back to 4,096 tokens"
    line = "all of teuken7b after 3,000,001,101,824 tokens"
    assert describe_start(branched().start, 4_096) == f"{line}; rolled back to 4,096 tokens"
    assert ("start", line) in time_sheet(plan_recipe(branched()), now=None).rows
    assert "start" not in {row[0] for row in time_sheet(plan_recipe(composed()), now=None).rows}


def test_the_path_of_the_parent_is_not_mathematics(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text(composed().model_dump_json())
    run = (f"from.run={tmp_path}", *FROM[1:], "from.with=optimizer")
    assert compute_fingerprint(composed(*run)) == compute_fingerprint(branched())
    assert compute_fingerprint(composed(*run, FROM[0])) == compute_fingerprint(branched())
    leaves = split_by_group(composed(*run).model_dump(mode="json"))
    assert [key for key in leaves[KeyGroup.RECORD] if key.startswith("from")] == ["from.run"]
    (tmp_path / "child.json").write_text(composed(*run).model_dump_json())
    assert read_recipe(tmp_path / "child.json") == composed(*run)


def test_the_default_tokens_are_the_end_of_the_parent() -> None:
    found = composed(FROM[0], "from.with=weights").start
    assert found is not None
    assert found.at_tokens == 6_000_002_203_648


def test_a_plan_counts_the_childs_own_steps() -> None:
    """Half of the steps; none of the evaluations before the first, which the parent took."""
    recipes = (composed(), branched(), composed(*WEIGHTS))
    whole, half, weights = (plan_recipe(recipe).cost_estimate for recipe in recipes)
    assert whole is not None
    assert half is not None
    assert weights is not None
    assert half.steps == whole.steps - LEFT // STEP
    assert half.useful_days == pytest.approx(whole.useful_days * half.steps / whole.steps)
    assert half.evaluations.count == (whole.evaluations.count or 0) // 2
    assert weights.steps == whole.steps
    assert abs((half.jobs or 0) - (whole.jobs or 0) / 2) <= 1
    assert half.jobs


def test_phases_of_the_parent_are_not_planned() -> None:
    tree = branched().model_dump(mode="json")
    cut = {"past": 10**12, "crossing": 2 * 10**12, "own": 5 * 10**12}
    tree["phases"] = {name: {"from_tokens": first} for name, first in cut.items()}
    plan = plan_recipe(check_recipe(tree))
    assert [one.recipe.phase_span.name for one in plan.steps] == ["crossing", "own"]
    assert plan.cost_estimate is not None
    assert plan.cost_estimate.steps == branched().derived_numbers.steps - branched().first_step
    assert recipe_of(check_recipe(tree), "own").first_step == LEFT // STEP


def test_a_miniature_starts_from_its_parents_miniature() -> None:
    parent = teuken()
    recipe = yaml.safe_dump({
        "defaults": ["teuken7b"],
        "name": "longer",
        "from": {"recipe": "teuken7b", "at_tokens": 5 * 10**12, "with": "optimizer"},
        "budget": {"total_tokens": 9 * 10**12},
    })
    Path("longer.yaml").write_text(recipe)
    child = compose_recipe(read_point(["recipe=./longer.yaml"]))
    assert child.start is not None
    assert child.start.at_tokens is not None
    total, every = parent.budget.total_tokens, parent.checkpoint.every_tokens
    assert child.budget.total_tokens == total * 9 // 6
    assert abs(child.start.at_tokens - total * 5 / 6) <= every / 2 + STEP // 1024
    assert child.start.fingerprint == compute_fingerprint(parent)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


WRONG = refusals(
    """
from.with=weights -> from: from requires a parent
from=runs/trunk -> from: 'runs/trunk' is not a section
$FROM from.with=all -> from.with: input should be 'optimizer' or 'weights'
from.recipe=no_such from.with=weights -> recipe: unknown recipe: 'no_such'
$FROM from.with=weights from.whence=1 -> from.whence: unknown key
$FROM from.with=weights from.fingerprint=abc -> from.fingerprint: the parent differs
$FROM from.with=weights model.num_layers=31 -> from: the weights differ: num_layers is 32
$FROM from.with=weights tokenizer=bpe_gpt2 -> tokenizer: the tokenizer differs
$RESUMED budget.total_tokens=1_000_000_000_000 -> budget.total_tokens: 1,000,000,000,000
$RESUMED optimizer=muon -> optimizer._target_: from.with=optimizer requires
$RESUMED precision.master=float64 -> precision.master: from.with=optimizer requires
$RESUMED budget.seed=1 -> budget.seed: from.with=optimizer requires the parent's 42, got 1
$RESUMED phases={a: {from_tokens: 1_000_000, fresh_optimizer: true}} -> phases: before
$RESUMED data.phases={a: {from_tokens: 1_000_000, shares: {en: 1.0}}}
    data.phases: before 3,000,001,101,824 tokens
from.recipe=teuken7b from.at_tokens=7_000_000_000_000 from.with=weights
    from.at_tokens: 7,000,000,000,000 is more than the end of teuken7b, 6,000,002,203,648
""",
    FROM=" ".join(FROM),
    RESUMED=" ".join(RESUMED),
)


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_conflicting_start_keys_are_refused(words: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        composed(*split_words(words))
    assert str(caught.value).startswith(message)


def test_a_miniature_with_its_parents_tokenizer_has_the_vocabulary_of_its_miniature(tmp_path):
    words = ("scale=mini", f"data.tokenizer_folder={tmp_path}")
    begins = ("from.recipe=teuken7b", "from.with=weights")
    rows = [
        teuken(*given).decoder_spec.padded_vocab_size
        for given in (words[:1], (*words, *begins), words)
    ]
    assert rows[0] == rows[1] < rows[2]


def test_later_phases_may_differ_from_the_parent() -> None:
    later = 4 * 10**12
    composed(
        *RESUMED,
        "optimizer.lr=1e-5",
        f"phases={{a: {{from_tokens: {later}, fresh_optimizer: true}}}}",
        f"data.phases={{a: {{from_tokens: {later}, shares: {{en: 1.0}}}}}}",
    )


def test_a_run_of_another_recipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text(composed("budget.seed=3").model_dump_json())
    with pytest.raises(RecipeError, match="is not a run of teuken7b"):
        composed(*WEIGHTS, f"from.run={tmp_path}")


def test_a_circle_of_parents_is_refused(tmp_path, monkeypatch):
    recipes = tmp_path / "kochbuch" / "recipes"
    recipes.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name, parent in (("one", "other"), ("other", "one")):
        tree = {"defaults": ["teuken7b"], "name": name}
        tree["from"] = {"recipe": parent, "with": "weights"}  # type: ignore[assignment]
        (recipes / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    said = r"from\.recipe: other starts from one starts from other"
    with pytest.raises(RecipeError, match=said):
        compose_recipe(read_point(["recipe=one"]))
