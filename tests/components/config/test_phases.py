"""Phases of a run: what a phase's recipe is, what it may not be, and what a miniature keeps."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.actions.show import as_json
from command.recipe_summary import phase_lines
from components.config.check import check_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.phases import recipe_at, recipe_before, recipe_of, recipes_of
from components.config.recipe import Recipe
from components.config.resolve import check_movable, update_recipe
from components.errors import RecipeError
from tests.components.config.helpers import refusals
from tests.components.config.own_recipe import compose_own

LONG: dict[str, Any] = {
    "from_tokens": 102_400,
    "budget": {"sequence_length": 512, "global_batch_tokens": 2_048},
    "model": {"positions": {"base": 5_000_000.0}},
    "data": {"document_mask": True},
    "parallelism": {"context": 2, "microbatch_sequences": 1},
}
LARGE = {
    "model.dim": 1_024,
    "model.attention.head_dim": 512,
    "schedule.total_tokens": 10**9,
    "budget.total_tokens": 10**9,
    "budget.global_batch_tokens": 1_048_576,
    "budget.sequence_length": 4_096,
    "budget.ramp_up": "none",
    "budget.seed": 1,
}
ZERO = {"parallelism.zero": 3}


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("All work and no play makes a dull text. " * 20_000)


@cache
def base() -> Recipe:
    """Compose a small recipe, whose batch ramps up over 8,192 tokens, on two ranks."""
    one = {"parallelism.microbatch_sequences": 1}
    return compose_own(one, "scale=full", "cluster.ranks=2")


def phased(*phases: dict[str, Any]) -> Recipe:
    names = ("long", "later")
    found = dict(zip(names, phases, strict=False))
    return check_recipe({**base().model_dump(mode="json"), "phases": found})


def composed(phase: dict[str, Any], *words: str, **changed: Any) -> Recipe:
    one = {"parallelism.microbatch_sequences": 1, "phases": {"long": phase}}
    return compose_own({**one, **changed}, *words)


def test_a_phase_is_the_recipe_with_the_phases_keys() -> None:
    run = phased(LONG)
    first, long = recipes_of(run).values()
    assert first is run
    assert (long.budget.sequence_length, long.derived_numbers.samples_per_step) == (512, 4)
    assert long.model["positions"]["base"] == 5e6
    assert run.model["positions"]["base"] == 10_000.0
    assert long.data.document_mask
    assert (run.parallelism.data, run.parallelism.context) == (2, 1)
    assert (long.parallelism.data, long.parallelism.context) == (1, 2)
    assert long.parallelism.data_shard == 1
    assert run.cluster == long.cluster
    assert (long.budget.ramp_up, long.optimizer) == ("none", run.optimizer)
    # Of the run it has the clock, the number of steps and the fingerprint.
    assert long.token_clock == run.token_clock
    assert long.derived_numbers.steps == run.derived_numbers.steps == long.phase_span.end_step
    assert compute_fingerprint(long) == compute_fingerprint(run)
    assert long.phase_span.first_token == run.phase_span.end_token == 102_400


def test_a_checkpoint_belongs_to_the_phase_that_wrote_it() -> None:
    run = phased(LONG)
    border = run.phase_span.end_step
    lengths = [recipe_at(run, step).budget.sequence_length for step in (border - 1, border)]
    assert lengths == [128, 512]
    assert recipe_before(run, border).budget.sequence_length == 128
    assert recipe_before(run, border + 1).budget.sequence_length == 512
    assert recipe_before(run, 0) is run


def test_a_run_read_from_its_file_is_equal() -> None:
    run = phased(LONG)
    again = check_recipe(run.model_dump(mode="json"))
    assert again == run
    assert recipe_of(again, "long") == recipe_of(run, "long")
    assert "phases" not in base().model_dump(mode="json")


def test_the_fingerprint_follows_a_phase_s_length_and_not_its_layout() -> None:
    run = phased(LONG)
    other = {**LONG, "parallelism": {}}
    assert compute_fingerprint(phased(other)) == compute_fingerprint(run)
    longer = {**LONG, "budget": {"sequence_length": 1_024}}
    assert compute_fingerprint(phased(longer)) != compute_fingerprint(run)
    fresh = phased({**LONG, "fresh_optimizer": True})
    assert compute_fingerprint(fresh) != compute_fingerprint(run)


def test_a_run_resumes_with_another_layout_of_a_phase() -> None:
    run = phased(LONG)
    check_movable(["phases.long.parallelism.context"])
    moved = update_recipe(run, {"phases.long.parallelism.context": 1})
    assert recipe_of(moved, "long").parallelism.data == 2
    assert compute_fingerprint(moved) == compute_fingerprint(run)
    with pytest.raises(RecipeError, match=r"remove phases\.long\.from_tokens"):
        check_movable(["phases.long.from_tokens"])


@pytest.mark.parametrize(
    ("phase", "said"),
    refusals(r"""
{from_fraction: 0.5} -> phases\.long: expected exactly one of from_tokens
{from_tokens: 1000000000}
    long\.from_tokens: 1,000,000,000 is more than budget\.total_tokens - 1 =
{from_tokens: 4096} -> long: it starts within the batch ramp-up of 8,192
{budget: {sequence_length: 300}}
    global_batch_tokens: 1,024 is not a multiple of sequence_length 300
{budget: {global_batch_tokens: 128}, parallelism: {}}
    invalid budget\.global_batch_tokens in this phase: 1 sequences per step
{parallelism: {contxt: 2}} -> parallelism\.contxt in this phase: unknown key
{parallelism: {context: many}} -> invalid parallelism\.context in this phase
{parallelism: {context: 3}} -> invalid cluster\.ranks in this phase: 2 is not a multiple
{model: {positions: {base: large}}} -> invalid model\.positions\.base in this phase: .*large
{model: {positions: {_target_: components.model.positions.Nowhere}}}
    model\.positions\._target_: .*Nowhere.* is not an allowed class of model
{data: {_target_: components.data.order.SampleOrder}} -> data\._target_: .* is not allowed
{model: {positions: {_target_: components.model.positions.Learned, _partial_: true, \
  num_positions: 512}}} -> model\.positions .* changes the shapes of the weights
{precision: {compute: float7}} -> invalid precision\.compute in this phase
{optimizer: {lr: 1.0}} -> phases\.long\.optimizer: unknown key
{budget: {seed: 3}} -> phases\.long\.budget\.seed: unknown key
"""),
)
def test_a_wrong_phase_has_a_message_with_its_name(phase, said):
    with pytest.raises(RecipeError, match=said) as raised:
        phased({**LONG, **yaml.safe_load(phase)})
    assert raised.value.path.startswith("phases.long")
    assert raised.value.remedy


def test_two_phases_with_the_same_start_are_refused() -> None:
    message = r"phases\.long: starts at 102,400 tokens, the same as phases\.later"
    with pytest.raises(RecipeError, match=message):
        phased(LONG, {"from_fraction": 0.5})


def test_a_phase_may_scale_the_rotation() -> None:
    yarn = {"_target_": "components.model.rotary_scaling.YarnScaling", "factor": 8.0}
    yarn |= {"original_tokens": 128, "beta_fast": 32.0, "beta_slow": 1.0}
    run = phased({**LONG, "model": {"positions": {"scaling": yarn}}})
    positions = recipe_of(run, "long").model["positions"]
    assert positions["scaling"] == yarn
    assert positions["base"] == 10_000.0
    assert run.model["positions"].get("scaling") is None


def test_a_miniature_keeps_the_place_of_a_phase_and_what_is_longer() -> None:
    longer = {"sequence_length": 65_536, "global_batch_tokens": 2_097_152}
    phase = {**LONG, "from_tokens": 750_000_000, "budget": longer}
    run = composed(phase, "scale=mini", **LARGE)
    first, long = run.token_clock.spans
    assert run.budget.total_tokens == 614_400
    assert first.end_token == pytest.approx(0.75 * 614_400, abs=4_096)
    assert (first.sequence_length, long.sequence_length) == (256, 1_024)
    tokens = [one.derived_numbers.tokens_per_step for one in recipes_of(run).values()]
    assert tokens == [4_096, 8_192]
    assert recipe_of(run, "long").model["positions"]["base"] == 5e6
    assert recipe_of(run, "long").data.document_mask


@pytest.mark.parametrize("ranks", [1, 8])
def test_a_miniature_deals_its_ranks_to_the_axes_of_each_phase(ranks: int) -> None:
    phase = {**LONG, "parallelism": {"context": 8, "microbatch_sequences": 1}}
    run = composed(phase, "scale=mini", f"cluster.ranks={ranks}", **LARGE)
    first, long = (one.parallelism for one in recipes_of(run).values())
    assert (first.data, first.context) == (ranks, 1)
    assert (long.data * long.context, long.context) == (ranks, min(2, ranks))


@pytest.mark.parametrize(
    ("words", "shard"),
    [
        (["cluster.ranks=1"], 1),
        (["cluster.ranks=8"], 4),
        (["cluster.ranks=8", "phases.long.parallelism.data_shard=2"], 2),
    ],
)
def test_a_miniature_shards_a_phase_over_all_data_ranks_or_as_the_user_says(words, shard):
    layout = {"context": 8, "data_shard": 64, "microbatch_sequences": 1}
    run = composed({**LONG, "parallelism": layout}, "scale=mini", *words, **LARGE, **ZERO)
    assert recipe_of(run, "long").parallelism.data_shard == shard


def test_what_is_small_and_has_phases_trains_as_it_is() -> None:
    own = {**LONG, "parallelism": {}}
    small, full = (composed(own, f"scale={one}") for one in ("mini", "full"))
    kept = [one.model_dump(mode="json")["phases"]["long"]["budget"] for one in (small, full)]
    assert kept[0] == kept[1]
    assert small.token_clock == full.token_clock


def test_show_says_what_each_phase_takes() -> None:
    run = phased(LONG)
    first, long = phase_lines(run)
    assert first.startswith("first, tokens 0 to 102,400: ")
    assert "50 steps of 4 samples of 512 tokens, context 2" in long
    shown = as_json(run)["phases"]
    assert isinstance(shown, list)
    assert [one["name"] for one in shown] == ["", "long"]
    assert list(phase_lines(base())) == []
