"""A run of two lengths reads each by its own windows, and resumes by one integer on both."""

import dataclasses
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.check import check_recipe
from components.config.phases import recipe_at
from components.config.recipe import Recipe
from components.data.manifest import Manifest
from components.data.run_order import CUT
from components.errors import RecipeError
from components.parity.prover import draw_data
from components.train.batches import RankBatches
from components.train.sample_order import make_order

TWO = "data.sources={en: {placeholder: eu24/en}, de: {placeholder: eu24/de}}"
LONG = {"from_tokens": 7_680, "budget": {"sequence_length": 64}}
BORDER, STEPS = 5, 10
SHORT, LONGER = 48, 24  # samples of a step


@cache
def base() -> Recipe:
    words = ["recipe=teuken7b", "scale=parity", TWO, "data.shares={en: 0.75, de: 0.25}"]
    return compose_recipe(read_point(words))


def phased(ranks: int = 1, **data: object) -> Recipe:
    tree = base().model_dump(mode="json")
    tree["cluster"] |= {"ranks": ranks, "devices_per_node": ranks}
    tree["parallelism"] |= {"data": ranks, "data_shard": ranks, "microbatch_sequences": 1}
    return check_recipe({**tree, "data": tree["data"] | data, "phases": {"long": LONG}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn") / "data"
    draw_data(base(), folder)
    return folder


def batches(recipe: Recipe, folder: Path, step: int, rank: int = 0) -> RankBatches:
    manifest = Manifest.from_folder(folder)
    return RankBatches(
        recipe=recipe_at(recipe, step), folder=folder, manifest=manifest, rank=rank
    )


def ids(recipe: Recipe, folder: Path, step: int, ranks: int = 1):
    return [
        one
        for rank in range(ranks)
        for one in batches(recipe, folder, step, rank).sample_ids(step)
    ]


def test_the_clock_of_the_fixture_is_as_the_tests_count() -> None:
    first, long = phased().token_clock.spans
    assert (first.end_step, long.end_step) == (BORDER, STEPS)


@pytest.mark.parametrize("step", [0, BORDER - 1, BORDER, STEPS - 1])
def test_a_process_that_saw_no_other_step_reads_the_windows_of_its_length(folder, step):
    recipe = phased()
    length = 32 if step < BORDER else 64
    here = batches(recipe, folder, step)
    (rows,) = here.read_samples(here.list_sample_numbers(step)[:1], pinned=False)
    one = here.sample_ids(step)[0]
    (record,) = Manifest.from_folder(folder).sources[one.source].train
    tokens = np.fromfile(folder / record.name, np.dtype(record.dtype).newbyteorder("<"))
    expected = tokens[one.index * length : (one.index + 1) * length + 1]
    assert rows[0].tolist() == expected.tolist()
    assert len(here.list_sample_numbers(step)) == (SHORT if step < BORDER else LONGER)


def test_ranks_read_together_what_one_reads_on_both_sides_of_the_border(folder) -> None:
    alone, together = phased(), phased(ranks=4)
    for step in (0, BORDER - 1, BORDER, STEPS - 1):
        assert ids(together, folder, step, ranks=4) == ids(alone, folder, step)


def test_the_longer_windows_begin_an_epoch_and_none_comes_twice_in_one(folder) -> None:
    recipe = phased()
    short = [one for step in range(BORDER) for one in ids(recipe, folder, step)]
    long = [one for step in range(BORDER, STEPS) for one in ids(recipe, folder, step)]
    assert max(Counter(short).values()) == max(Counter(long).values()) == 1
    for name in ("en", "de"):
        last = max(one.epoch for one in short if one.source == name)
        assert min(one.epoch for one in long if one.source == name) == last + 1
        share = sum(one.source == name for one in long) / len(long)
        assert share == pytest.approx({"en": 0.75, "de": 0.25}[name], abs=2 / len(long))


def test_what_is_left_out_moves_samples_of_its_own_length_alone(folder) -> None:
    recipe = phased()
    last, next_one = (batches(recipe, folder, step) for step in (BORDER - 1, BORDER))
    before, after = last.list_sample_numbers(BORDER - 1), next_one.list_sample_numbers(BORDER)
    window = last.find_window(BORDER - 1, BORDER)
    assert window == (before[0], SHORT)
    assert next_one.find_window(BORDER - 1, BORDER + 1) == (CUT, LONGER)
    for one in (last, next_one):
        one.set_skipped([window])
    assert last.list_sample_numbers(BORDER - 1) == [number + SHORT for number in before]
    assert next_one.list_sample_numbers(BORDER) == after
    next_one.set_skipped([window, (CUT, 3)])
    assert next_one.list_sample_numbers(BORDER) == [number + 3 for number in after]


def test_what_was_drawn_counts_tokens_of_both_lengths(folder) -> None:
    phase = {"end": {"from_tokens": 9_216, "shares": {"en": 1.0}}}
    recipe = phased(phases=phase)
    counted = Counter[str]()
    for step in range(STEPS):
        for one in ids(recipe, folder, step):
            counted[one.source] += 32 if step < BORDER else 64
    drawn = batches(recipe, folder, 0).drawn_before(STEPS)
    total = sum(counted.values())
    assert total == recipe.token_clock.tokens_after(STEPS) == 15_360
    for name, one in drawn.items():
        assert one.share == pytest.approx(counted[name] / total)
    # From 9,216 tokens on, in the middle of the longer ones, all are English.
    assert drawn["en"].promised_share == pytest.approx((0.75 * 9_216 + 6_144) / 15_360)
    order = make_order(recipe, Manifest.from_folder(folder), folder)
    assert order.summarize_draws(recipe.total_samples) == drawn
    at = batches(recipe, folder, BORDER)
    assert at.shares_after(BORDER + 1) == {"en": 0.75, "de": 0.25}
    assert at.shares_after(BORDER + 2) == {"en": 1.0, "de": 0.0}
    assert at.drawn_before(BORDER)["en"].samples == order.count_samples("en", BORDER * SHORT)


@pytest.mark.parametrize("on_exhausted", ["refuse", "redistribute"])
def test_limits_of_repeats_hold_for_the_tokens_of_both_lengths(folder, on_exhausted) -> None:
    """Of ``de`` a quarter of 15,360 tokens is drawn, and there are 1,600."""
    found = Manifest.from_folder(folder)
    (record,) = found.sources["de"].train
    shorter = dataclasses.replace(
        found.sources["de"], train=(dataclasses.replace(record, tokens=1_601),)
    )
    manifest = dataclasses.replace(found, sources={**found.sources, "de": shorter})
    sources = base().model_dump(mode="json")["data"]["sources"]
    sources["de"]["most_epochs"] = 2
    recipe = phased(sources=sources, on_exhausted=on_exhausted)
    if on_exhausted == "refuse":
        with pytest.raises(RecipeError, match=r"de\.most_epochs: 2, but .* 2\.40 times"):
            make_order(recipe, manifest, Path())
        return
    drawn = make_order(recipe, manifest, Path()).summarize_draws(recipe.total_samples)["de"]
    assert 1.7 < drawn.epochs <= 2.0
