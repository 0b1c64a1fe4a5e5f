"""One rank of a stage reads the initial weights of a run from a folder, for all ranks."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.config.part_nodes import read_decoder
from components.config.schema.types import to_plain
from components.convert.family import choose_family
from components.convert.folder import make_config, their_tensors
from components.convert.hf_shards import SINGLE, ShardReader, write_shards
from components.convert.reading import read_folder
from components.distributed.mesh import build_mesh
from components.engine.parallelize import build_rank_model
from components.errors import RecipeError
from tests.components.distributed.layout_cases import gather
from tests.components.distributed.ranks import Ranks

State = dict[str, Tensor]


def begin(words: list[str]) -> tuple[State, int, State]:
    """Build this rank's model; return its weights, the count of reads, and expected weights."""
    recipe = compose_recipe(read_point(words))
    mesh = build_mesh("cpu", recipe.parallelism)
    names: list[str] = []
    read = ShardReader.read_tensor

    def counted(self: ShardReader, name: str) -> Tensor:
        names.append(name)
        return read(self, name)

    with patch.object(ShardReader, "read_tensor", counted):
        stages = build_rank_model(recipe, mesh, device=torch.device("cpu")).stages
    whole = build_node(recipe.model, "model")
    read_folder(
        Path(recipe.model["init_from"]),
        whole,
        section=to_plain(recipe.model),
        tokenizer_vocab_size=recipe.tokenizer["vocab_size"],
    )
    mine = {
        name: gather(weight.detach())
        for stage in stages
        for name, weight in stage.named_parameters()
    }
    return mine, len(names), {name: whole.get_parameter(name).detach() for name in mine}


def refused(words: list[str]) -> str:
    try:
        begin(words)
    except RecipeError as error:
        return str(error)
    return "nothing"


HEADS = ("num_heads=2", "num_kv_heads=2", "head_dim=16")
TINY = [
    *("recipe=teuken7b", "scale=mini", "cluster.ranks=4", "model.dim=32", "model.num_layers=2"),
    *(f"model.attention.{word}" for word in HEADS),
]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of DTensor, while it gathers


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Write a folder with random weights; return a recipe that starts from it."""
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
def test_one_rank_of_each_stage_reads_and_all_get_the_weights(
    four_ranks: Ranks, words: list[str], layout: list[str], readers: list[int]
) -> None:
    found = four_ranks(begin, [*words, *layout])
    assert [rank for rank, (_, count, _) in enumerate(found) if count] == readers
    for mine, _, whole in found:
        assert mine
        for name, weight in mine.items():
            assert torch.equal(weight, whole[name]), name


def test_an_unreadable_folder_fails_on_all_ranks(four_ranks: Ranks, words: list[str]) -> None:
    folder = Path(words[-1].partition("=")[2])
    (folder / SINGLE).write_bytes(b"no tensors")
    (message,) = set(four_ranks(refused, [*words, "parallelism.data=4"]))
    assert "cannot be read" in message
