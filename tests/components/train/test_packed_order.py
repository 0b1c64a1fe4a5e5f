"""A run over packed rows: each row once in an epoch, in shuffled order, whatever the ranks."""

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.check import check_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.data.manifest import Manifest
from components.data.packing import open_rows, pack_sources
from components.errors import RecipeError
from components.parity.prover import draw_data
from components.train.batches import RankBatches

ONE = "data.sources={en: {placeholder: eu24/en}}"
LENGTH, STEP = 32, 48


@cache
def base() -> Recipe:
    words = ["recipe=teuken7b", "scale=parity", ONE, "data.shares={en: 1.0}"]
    return compose_recipe(read_point([*words, "data.packing=best_fit"]))


def on_ranks(ranks: int) -> Recipe:
    tree = base().model_dump(mode="json")
    tree["cluster"] |= {"ranks": ranks, "devices_per_node": ranks}
    tree["parallelism"] |= {"data": ranks, "data_shard": ranks, "microbatch_sequences": 1}
    return check_recipe(tree)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn") / "data"
    draw_data(base(), folder)
    said = pack_sources(folder, Manifest.from_folder(folder), ["en"], LENGTH)
    assert said == ["packed: en, 17 rows of 32 tokens, 94.49% full"]
    return folder


def batches(ranks: int, folder: Path, rank: int = 0) -> RankBatches:
    manifest = Manifest.from_folder(folder)
    return RankBatches(recipe=on_ranks(ranks), folder=folder, manifest=manifest, rank=rank)


def test_each_row_comes_once_in_an_epoch_and_not_from_the_fullest_on(folder: Path) -> None:
    source = Manifest.from_folder(folder).sources["en"]
    rows = open_rows(folder, "en", source, length=LENGTH)
    here = batches(1, folder)
    read = [one for step in range(5) for one in here.sample_ids(step)]
    first = [one.index for one in read if one.epoch == 0]
    assert sorted(first) == list(range(len(rows)))
    assert first != sorted(first)  # as they were packed, the longest pieces first
    assert max(Counter(read).values()) == 1


def test_a_sample_is_its_row_and_padding_is_no_token_of_another(folder: Path) -> None:
    manifest, here = Manifest.from_folder(folder), batches(1, folder)
    eod = manifest.tokenizer.eod_id
    rows = open_rows(folder, "en", manifest.sources["en"], length=LENGTH)
    (record,) = manifest.sources["en"].train
    whole = np.fromfile(folder / record.name, np.dtype(record.dtype).newbyteorder("<"))
    positions = here.list_sample_numbers(3)
    (read,) = here.read_samples(positions[:1], pinned=False).tolist()
    row = here.sample_ids(3)[0].index
    pieces = rows.pieces[rows.begins[row] : rows.begins[row + 1]].tolist()
    joined = [int(one) for start, size in pieces for one in whole[start : start + size]]
    assert read[0][: len(joined)] == joined
    assert set(read[0][len(joined) :]) <= {eod}


def test_ranks_read_together_what_one_reads(folder: Path) -> None:
    alone = batches(1, folder)
    for step in (0, 7):
        together = [
            one for rank in range(4) for one in batches(4, folder, rank).sample_ids(step)
        ]
        assert together == alone.sample_ids(step)


def test_what_joins_documents_cannot_be_packed() -> None:
    tree = base().model_dump(mode="json")
    source = {"tokens": ["/data/joined"], "eod": "absent"}
    tree["data"] |= {"sources": {"en": source}}
    message = r"sources\.en\.eod: absent, but data\.packing needs the end of each document"
    with pytest.raises(RecipeError, match=message):
        check_recipe(tree)


def test_the_packing_is_mathematics_and_the_default_is_not_written() -> None:
    tree = base().model_dump(mode="json")
    plain = check_recipe({**tree, "data": {**tree["data"], "packing": "concatenate"}})
    assert compute_fingerprint(plain) != compute_fingerprint(base())
    assert "packing" not in plain.model_dump(mode="json")["data"]
