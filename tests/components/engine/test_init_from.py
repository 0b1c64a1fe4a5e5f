"""Of the ranks of a stage one reads the folder that a run begins with; all have its bits."""

import json
from pathlib import Path

import pytest
import torch

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.config.part_nodes import read_decoder
from components.config.schema.types import to_plain
from components.convert.family import choose_family
from components.convert.folder import make_config, their_tensors
from components.convert.hf_shards import SINGLE, write_shards
from tests.components.distributed.ranks import Ranks
from tests.components.engine.init_from_cases import begin, refused

HEADS = ("num_heads=2", "num_kv_heads=2", "head_dim=16")
TINY = [
    *("recipe=teuken7b", "scale=mini", "cluster.ranks=4", "model.dim=32", "model.num_layers=2"),
    *(f"model.attention.{word}" for word in HEADS),
]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # DTensor's, while it gathers


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Write a folder of random weights, and ask for them."""
    recipe = compose_recipe(read_point(TINY))
    section, target = to_plain(recipe.model), tmp_path / "weights"
    features = read_decoder(section)
    family, model = choose_family(features), build_node(recipe.model, "model")
    rows = features.padded_vocab_size
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(generator=generator)
    target.mkdir()
    tensors = their_tensors(dict(model.named_parameters()), family, features, rows=rows)
    write_shards(target, tensors)
    config = make_config(
        family, features, rows=rows, context_tokens=64, ids={}, dtype="float32"
    )
    (target / "config.json").write_text(json.dumps(config))
    return [*TINY, f"model.init_from={target}"]


@pytest.mark.quick("tensor")
@pytest.mark.parametrize(
    ("layout", "readers"),
    [
        (["parallelism.data=4"], [0]),
        (["parallelism.data=4", "parallelism.zero=3"], [0]),
        (["parallelism.data=2", "parallelism.tensor=2"], [0]),
        (["parallelism.data=2", "parallelism.context=2"], [0]),
        (["parallelism.data=2", "parallelism.pipeline=2", "parallelism.tensor=1"], [0, 2]),
    ],
    ids=["data", "zero 3", "tensor", "context", "pipeline"],
)
def test_one_rank_of_each_stage_reads_for_all_and_all_have_the_folders_bits(
    four_ranks: Ranks, words: list[str], layout: list[str], readers: list[int]
) -> None:
    found = four_ranks(begin, [*words, *layout])
    assert [rank for rank, (_, count, _) in enumerate(found) if count] == readers
    for mine, _, whole in found:
        assert mine
        for name, weight in mine.items():
            assert torch.equal(weight, whole[name]), name


def test_all_ranks_hear_of_a_folder_that_one_cannot_read(
    four_ranks: Ranks, words: list[str]
) -> None:
    folder = Path(words[-1].partition("=")[2])
    (folder / SINGLE).write_bytes(b"no tensors")
    (said,) = set(four_ranks(refused, [*words, "parallelism.data=4"]))
    assert "cannot be read" in said
