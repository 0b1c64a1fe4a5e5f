"""The order of a run follows from its recipe and the tokens found, whatever the ranks."""

import dataclasses
from pathlib import Path

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.data.manifest import Manifest
from components.errors import RecipeError
from components.parity.prover import draw_data
from components.train.batches import RankBatches
from components.train.sample_order import make_order

TWO = (
    "data.sources={en: {placeholder: eu24/en}, de: {placeholder: eu24/de}}",
    "data.shares={}",
)


def composed(*words: str) -> Recipe:
    return compose_recipe(read_point(["recipe=teuken7b", "scale=parity", *words]))


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Say that of ``de`` nine times as many tokens were found as of ``en``."""
    draw_data(composed(*TWO, "data.mixture=natural"), tmp_path / "data")
    found = Manifest.from_folder(tmp_path / "data")
    sources = {}
    for name, tokens in (("de", 9 * 3201), ("en", 3201)):
        (record,) = found.sources[name].train
        longer = dataclasses.replace(record, tokens=tokens)
        sources[name] = dataclasses.replace(found.sources[name], train=(longer,))
    return dataclasses.replace(found, sources=sources)


@pytest.mark.parametrize(
    ("mixture", "share"),
    [("natural", 0.9), ("{temperature: 2}", 0.75), ("{temperature: 1}", 0.9)],
)
def test_a_rule_takes_its_shares_from_the_tokens_found(manifest, mixture, share) -> None:
    drawn = make_order(
        composed(*TWO, f"data.mixture={mixture}"), manifest, Path()
    ).summarize_draws(480)
    assert drawn["de"].promised_share == pytest.approx(share)
    assert abs(drawn["de"].samples - 480 * share) < 2


def test_given_shares_change_where_the_phase_begins(manifest) -> None:
    words = (
        *("data.shares={en: 0.5, de: 0.5}", TWO[0]),
        "data.phases={end: {from_fraction: 0.75, shares: {en: 1.0}}}",
    )
    recipe = composed(*words)
    order = make_order(recipe, manifest, Path())
    assert recipe.total_samples == 480
    assert abs(order.count_samples("de", 360) - 180) < 2
    assert order.count_samples("de", 480) == order.count_samples("de", 360)


def test_what_a_source_may_not_repeat_is_refused_or_dealt(manifest) -> None:
    words = (TWO[0], "data.shares={en: 0.9, de: 0.1}", "data.sources.en.most_epochs=4")
    with pytest.raises(RecipeError, match=r"en\.most_epochs: 4, but .* 4\.32 times"):
        make_order(composed(*words), manifest, Path())
    order = make_order(composed(*words, "data.on_exhausted=redistribute"), manifest, Path())
    assert 390 <= order.count_samples("en", 480) <= 400  # four times its hundred windows


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_draw_across_a_phase_what_one_process_draws(tmp_path, ranks) -> None:
    words = (
        *("data.shares={en: 0.5, de: 0.5}", TWO[0]),
        "data.phases={end: {from_fraction: 0.33, shares: {en: 1.0}}}",
    )
    recipe = composed(*words)
    draw_data(recipe, tmp_path / "data")
    manifest = Manifest.from_folder(tmp_path / "data")

    def ids(recipe: Recipe, step: int, ranks: int):
        return [
            one
            for rank in range(ranks)
            for one in RankBatches(
                recipe=recipe, folder=tmp_path / "data", manifest=manifest, rank=rank
            ).sample_ids(step)
        ]

    together = composed(*words, f"parallelism.data={ranks}")
    for step in range(10):
        assert ids(together, step, ranks) == ids(recipe, step, 1)
    # One integer resumes: what is drawn follows from the step, in a process that saw no other.
    assert ids(recipe, 7, 1) == ids(composed(*words), 7, 1)


def test_the_shares_after_a_step_are_those_of_its_last_sample_past_what_was_skipped(
    tmp_path,
) -> None:
    words = (
        *("data.shares={en: 0.5, de: 0.5}", TWO[0]),
        "data.phases={end: {from_fraction: 0.5, shares: {en: 1.0}}}",
    )
    recipe = composed(*words)
    draw_data(recipe, tmp_path / "data")
    manifest = Manifest.from_folder(tmp_path / "data")
    batches = RankBatches(recipe=recipe, folder=tmp_path / "data", manifest=manifest, rank=0)
    early, late = {"de": 0.5, "en": 0.5}, {"de": 0.0, "en": 1.0}
    half = recipe.derived_numbers.steps // 2  # its last sample is the last of the first phase
    assert batches.shares_after(0) == batches.shares_after(half) == early
    assert batches.shares_after(half + 1) == late
    batches.set_skipped([(0, 1)])
    assert batches.shares_after(half - 1) == early
    assert batches.shares_after(half) == late
