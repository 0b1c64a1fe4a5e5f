"""Documents of packed tokens, and the random streams that a microbatch's dropout draws from."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__

from command.arguments import read_point
from command.compose import compose_recipe
from components.distributed.mesh import Mesh, build_mesh
from components.distributed.tensor_styles import seed_layers
from components.dryrun.world import fake_world
from components.engine.microbatch_forward import StageCompute, number_documents
from components.train.trainer import degrees_of
from tests.components.distributed.tensor_cases import Parts
from tests.components.distributed.tensor_cases import build as build_decoder

RECIPE = compose_recipe(read_point(["recipe=teuken7b", "scale=mini"]))


def mesh_of(data: int) -> Mesh:
    words = ["recipe=teuken7b", "scale=mini", f"parallelism.data={data}"]
    parallelism = compose_recipe(read_point(words)).parallelism
    order = parallelism.rank_order
    return build_mesh("cpu", degrees_of(parallelism), order, expert_aware=True)


def seeds(mesh: Mesh, microbatches: int, *, step: int = 3) -> list[int]:
    """Seed one layer in each of this rank's microbatches."""
    compute = StageCompute(recipe=RECIPE, mesh=mesh, device=torch.device("cpu"), eod_id=0)
    compute.begin(step, microbatches)
    found = []
    for number in range(microbatches):
        compute.take(number)
        found.append(compute.dropout_seed("1"))
    return found


def test_data_ranks_draw_the_streams_that_one_process_does() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    alone, later = seeds(mesh_of(1), 8), seeds(mesh_of(1), 8, step=4)
    dist.destroy_process_group()
    together = []
    for rank in range(4):
        with fake_world(rank, 4):
            together += seeds(mesh_of(4), 2)
    assert together == alone
    assert len({*alone, *later}) == 16


def test_an_end_of_document_belongs_to_the_document_that_it_ends() -> None:
    tokens = torch.tensor([[5, 0, 7, 8, 0, 0, 3], [0, 5, 6, 7, 8, 9, 0]])
    numbers = [[0, 0, 1, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1]]
    assert number_documents(tokens, eod_id=0).tolist() == numbers


def test_the_embedding_and_every_layer_draw_from_streams_of_their_own() -> None:
    with fake_world(0, 1):
        compute = StageCompute(
            recipe=RECIPE, mesh=mesh_of(1), device=torch.device("cpu"), eod_id=0
        )
        compute.begin(3, 1)
        parts = ["embedding", *(str(layer) for layer in range(RECIPE.model["num_layers"]))]
        assert len({compute.dropout_seed(part) for part in parts}) == len(parts)


@pytest.mark.parametrize("parts", [Parts(dropout=0.1), Parts(attention_dropout=0.1)])
def test_each_layer_is_seeded_by_its_own_name(parts: Parts) -> None:
    decoder = build_decoder(parts._replace(num_layers=3))
    names = {"embedding": 7, "0": 1_000, "1": 1_001, "2": 1_002}
    seed_layers(decoder, names.__getitem__)
    seen: list[int] = []
    for part in (decoder.embedding, *decoder.layers.values()):
        assert part is not None
        part.register_forward_pre_hook(lambda *_: seen.append(torch.initial_seed()))
    decoder(torch.randint(0, 60, (1, 8)))
    assert seen == [7, 1_000, 1_001, 1_002]


def test_a_model_without_dropout_is_not_seeded_at_all() -> None:
    decoder = build_decoder(Parts(num_layers=3))
    asked: list[str] = []

    def seed_of(name: str) -> int:
        asked.append(name)
        return 0

    seed_layers(decoder, seed_of)
    torch.manual_seed(5)
    with fake_world(0, 1):
        device = torch.device("cpu")
        compute = StageCompute(recipe=RECIPE, mesh=mesh_of(1), device=device, eod_id=0)
        rows = torch.randint(0, 60, (1, 9))
        compute.begin(0, 1)
        before = torch.get_rng_state()
        compute(decoder, (rows[:, :-1],), rows, 0)
    assert not asked
    assert torch.equal(torch.get_rng_state(), before)
