"""The order of a run follows from its recipe and the tokens found, whatever the ranks.

Rows that are packed come once in an epoch; a run of two lengths reads each by its own windows;
windows that are left out are leapt over.
"""

import dataclasses
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.check import check_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.phases import recipe_at
from components.config.recipe import Recipe
from components.data.manifest import Manifest
from components.data.packing import open_rows, pack_sources
from components.data.run_order import CUT
from components.errors import RecipeError
from components.parity.prover import draw_data
from components.train.batches import RankBatches, SampleSkipper
from components.train.sample_order import make_order

SOURCES = "data.sources={en: {placeholder: eu24/en}, de: {placeholder: eu24/de}}"
TWO, HALVES = (SOURCES, "data.shares={}"), (SOURCES, "data.shares={en: 0.5, de: 0.5}")


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
    recipe = composed(*TWO, f"data.mixture={mixture}")
    drawn = make_order(recipe, manifest, Path()).summarize_draws(480)
    assert drawn["de"].promised_share == pytest.approx(share)
    assert abs(drawn["de"].samples - 480 * share) < 2


def test_given_shares_change_where_the_phase_begins(manifest) -> None:
    words = (*HALVES, "data.phases={end: {from_fraction: 0.75, shares: {en: 1.0}}}")
    recipe = composed(*words)
    order = make_order(recipe, manifest, Path())
    assert recipe.total_samples == 480
    assert abs(order.count_samples("de", 360) - 180) < 2
    assert order.count_samples("de", 480) == order.count_samples("de", 360)


def test_a_source_beyond_its_epochs_is_refused_or_redistributed(manifest) -> None:
    words = (SOURCES, "data.shares={en: 0.9, de: 0.1}", "data.sources.en.most_epochs=4")
    with pytest.raises(RecipeError, match=r"en\.most_epochs: 4, but .* 4\.32 times"):
        make_order(composed(*words), manifest, Path())
    order = make_order(composed(*words, "data.on_exhausted=redistribute"), manifest, Path())
    assert 390 <= order.count_samples("en", 480) <= 400  # four times its hundred windows


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_draw_the_samples_of_one_process_across_a_phase(tmp_path, ranks) -> None:
    words = (*HALVES, "data.phases={end: {from_fraction: 0.33, shares: {en: 1.0}}}")
    recipe = composed(*words)
    draw_data(recipe, tmp_path / "data")
    manifest = Manifest.from_folder(tmp_path / "data")

    def ids(recipe: Recipe, step: int, ranks: int):
        data: Any = {"folder": tmp_path / "data", "manifest": manifest}
        several = (RankBatches(recipe=recipe, rank=rank, **data) for rank in range(ranks))
        return [one for batches in several for one in batches.sample_ids(step)]

    together = composed(*words, f"parallelism.data={ranks}")
    for step in range(10):
        assert ids(together, step, ranks) == ids(recipe, step, 1)
    # One integer resumes: what is drawn follows from the step, in a process that saw no other.
    assert ids(recipe, 7, 1) == ids(composed(*words), 7, 1)


def test_shares_after_a_step_come_from_its_last_sample(tmp_path):
    words = (*HALVES, "data.phases={end: {from_fraction: 0.5, shares: {en: 1.0}}}")
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


ONE = "data.sources={en: {placeholder: eu24/en}}"
LENGTH = 32


@cache
def packed() -> Recipe:
    return composed(ONE, "data.shares={en: 1.0}", "data.packing=best_fit")


def on_ranks(recipe: Recipe, ranks: int) -> dict[str, Any]:
    tree = recipe.model_dump(mode="json")
    tree["cluster"] |= {"ranks": ranks, "devices_per_node": ranks}
    tree["parallelism"] |= {"data": ranks, "data_shard": ranks, "microbatch_sequences": 1}
    return tree


@pytest.fixture(scope="module")
def rows_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn") / "data"
    draw_data(packed(), folder)
    said = pack_sources(folder, Manifest.from_folder(folder), ["en"], LENGTH)
    assert said == ["packed: en, 17 rows of 32 tokens, 94.49% full"]
    return folder


def packed_batches(ranks: int, folder: Path, rank: int = 0) -> RankBatches:
    manifest = Manifest.from_folder(folder)
    recipe = check_recipe(on_ranks(packed(), ranks))
    return RankBatches(recipe=recipe, folder=folder, manifest=manifest, rank=rank)


def test_each_packed_row_appears_once_an_epoch_in_shuffled_order(rows_folder: Path) -> None:
    source = Manifest.from_folder(rows_folder).sources["en"]
    rows = open_rows(rows_folder, "en", source, length=LENGTH)
    here = packed_batches(1, rows_folder)
    read = [one for step in range(5) for one in here.sample_ids(step)]
    first = [one.index for one in read if one.epoch == 0]
    assert sorted(first) == list(range(len(rows)))
    assert first != sorted(first)  # as they were packed, the longest pieces first
    assert max(Counter(read).values()) == 1


def test_a_packed_sample_has_its_row_and_padding(rows_folder: Path) -> None:
    manifest, here = Manifest.from_folder(rows_folder), packed_batches(1, rows_folder)
    eod = manifest.tokenizer.eod_id
    rows = open_rows(rows_folder, "en", manifest.sources["en"], length=LENGTH)
    (record,) = manifest.sources["en"].train
    whole = np.fromfile(rows_folder / record.name, np.dtype(record.dtype).newbyteorder("<"))
    positions = here.list_sample_numbers(3)
    (read,) = here.read_samples(positions[:1], pinned=False).tolist()
    row = here.sample_ids(3)[0].index
    pieces = rows.pieces[rows.begins[row] : rows.begins[row + 1]].tolist()
    joined = [int(one) for start, size in pieces for one in whole[start : start + size]]
    assert read[0][: len(joined)] == joined
    assert set(read[0][len(joined) :]) <= {eod}


def test_ranks_read_together_what_one_reads(rows_folder: Path) -> None:
    alone = packed_batches(1, rows_folder)
    for step in (0, 7):
        together = [
            one
            for rank in range(4)
            for one in packed_batches(4, rows_folder, rank).sample_ids(step)
        ]
        assert together == alone.sample_ids(step)


def test_the_packing_is_part_of_the_fingerprint():
    tree = packed().model_dump(mode="json")
    plain = check_recipe({**tree, "data": {**tree["data"], "packing": "concatenate"}})
    assert compute_fingerprint(plain) != compute_fingerprint(packed())
    assert "packing" not in plain.model_dump(mode="json")["data"]
    source = {"tokens": ["/data/joined"], "eod": "absent"}
    tree["data"] |= {"sources": {"en": source}}
    message = r"sources\.en\.eod: absent, but data\.packing needs the end of each document"
    with pytest.raises(RecipeError, match=message):
        check_recipe(tree)


LONG = {"from_tokens": 7_680, "budget": {"sequence_length": 64}}
BORDER, STEPS = 5, 10
SHORT, LONGER = 48, 24  # samples of a step


@cache
def base() -> Recipe:
    return composed(SOURCES, "data.shares={en: 0.75, de: 0.25}")


def phased(ranks: int = 1, **data: object) -> Recipe:
    tree = on_ranks(base(), ranks)
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


@pytest.mark.parametrize("step", [0, BORDER - 1, BORDER, STEPS - 1])
def test_a_process_reads_the_windows_of_its_length(folder, step):
    recipe = phased()
    assert [span.end_step for span in recipe.token_clock.spans] == [BORDER, STEPS]
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


def test_longer_windows_start_an_epoch_without_repeats(folder) -> None:
    recipe = phased()
    short = [one for step in range(BORDER) for one in ids(recipe, folder, step)]
    long = [one for step in range(BORDER, STEPS) for one in ids(recipe, folder, step)]
    assert max(Counter(short).values()) == max(Counter(long).values()) == 1
    for name in ("en", "de"):
        last = max(one.epoch for one in short if one.source == name)
        assert min(one.epoch for one in long if one.source == name) == last + 1
        share = sum(one.source == name for one in long) / len(long)
        assert share == pytest.approx({"en": 0.75, "de": 0.25}[name], abs=2 / len(long))


def test_skipped_samples_shift_only_samples_of_their_length(folder) -> None:
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


def test_drawn_shares_count_tokens_of_both_lengths(folder) -> None:
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


WINDOWS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=6)


def trained_on(windows: list[tuple[int, int]]) -> list[int]:
    out = {number for first, count in windows for number in range(first, first + count)}
    return [number for number in range(300) if number not in out]


@given(WINDOWS)
def test_sample_numbers_skip_the_windows(windows: list[tuple[int, int]]) -> None:
    skipped, expected = SampleSkipper(windows), trained_on(windows)
    assert [skipped.find_sample_number(place) for place in range(100)] == expected[:100]


@given(WINDOWS, st.integers(0, 50), st.integers(1, 30))
def test_a_new_window_keeps_the_order_of_other_samples(windows, first, count):
    window = SampleSkipper(windows).find_window(first, first + count)
    rest = SampleSkipper([*windows, window])
    before = trained_on(windows)
    expected = before[:first] + before[first + count :]
    assert [rest.find_sample_number(place) for place in range(100)] == expected[:100]


@given(WINDOWS, st.integers(0, 100))
def test_skipped_samples_below_a_number_are_counted(windows, number):
    left_out = sum(count for _, count in SampleSkipper(windows).iterate_skipped(number))
    assert number - left_out == sum(one < number for one in trained_on(windows))
