"""Ranks that begin with the weights of a folder, and what each reads of it."""

from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.config.schema.types import to_plain
from components.convert.hf_shards import ShardReader
from components.convert.reading import read_folder
from components.distributed.mesh import build_mesh
from components.engine.parallelize import build_rank_model
from components.errors import RecipeError
from tests.components.distributed.layout_cases import gather

State = dict[str, Tensor]


def begin(words: list[str]) -> tuple[State, int, State]:
    """Build this rank's model; return it, how many tensors it read, and the whole."""
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
