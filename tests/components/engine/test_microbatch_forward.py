"""Document numbers of packed tokens, and the dropout seeds of a microbatch."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__
from torch.nn.functional import cross_entropy

from components.config.recipe import Recipe
from components.data.samples import LossMask
from components.distributed.mesh import Mesh, build_mesh
from components.distributed.tensor_styles import seed_layers
from components.dryrun.fake_world import fake_world
from components.engine.microbatch_forward import StageForward, number_documents
from components.model.decoder import Decoder
from components.model.masks import CausalMask
from components.parity.prover import in_precision
from tests.components.distributed.tensor_cases import Parts
from tests.components.distributed.tensor_cases import build as build_decoder
from tests.components.engine.test_mesh_engine import count_unequally
from tests.recipes.compositions import compose

CPU = torch.device("cpu")


def mini(*words: str) -> Recipe:
    return compose("teuken7b", "scale=mini", *words)


RECIPE = mini()


def mesh_of(data: int) -> Mesh:
    return build_mesh("cpu", mini(f"parallelism.data={data}").parallelism)


def forward_of(mesh: Mesh, recipe: Recipe = RECIPE, eod_id: int = 0) -> StageForward:
    return StageForward(recipe=recipe, mesh=mesh, device=CPU, eod_id=eod_id)


def seeds(mesh: Mesh, microbatches: int, *, step: int = 3) -> list[int]:
    """Return the seed of one layer in each microbatch of this rank."""
    compute = forward_of(mesh)
    compute.start_step(step, microbatches)
    found = []
    for number in range(microbatches):
        compute.select_microbatch(number)
        found.append(compute.dropout_seed("1"))
    return found


def test_data_ranks_have_the_seeds_of_one_process() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    alone, later = seeds(mesh_of(1), 8), seeds(mesh_of(1), 8, step=4)
    dist.destroy_process_group()
    together = []
    for rank in range(4):
        with fake_world(rank, 4):
            together += seeds(mesh_of(4), 2)
    assert together == alone
    assert len({*alone, *later}) == 16


def test_an_end_of_document_token_belongs_to_its_document() -> None:
    tokens = torch.tensor([[5, 0, 7, 8, 0, 0, 3], [0, 5, 6, 7, 8, 9, 0]])
    numbers = [[0, 0, 1, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1]]
    assert number_documents(tokens, eod_id=0).tolist() == numbers


def test_the_embedding_and_every_layer_have_different_seeds() -> None:
    with fake_world(0, 1):
        compute = forward_of(mesh_of(1))
        compute.start_step(3, 1)
        parts = ["embedding", *(str(layer) for layer in range(RECIPE.model["num_layers"]))]
        assert len({compute.dropout_seed(part) for part in parts}) == len(parts)


@pytest.mark.parametrize("parts", [Parts(dropout=0.1), Parts(attention_dropout=0.1)])
def test_each_layer_is_seeded_by_its_name(parts: Parts) -> None:
    decoder = build_decoder(parts._replace(num_layers=3))
    names = {"embedding": 7, "0": 1_000, "1": 1_001, "2": 1_002}
    seed_layers(decoder, names.__getitem__)
    seen: list[int] = []
    for part in (decoder.embedding, *decoder.layers.values()):
        assert part is not None
        part.register_forward_pre_hook(lambda *_: seen.append(torch.initial_seed()))
    decoder(torch.randint(0, 60, (1, 8)))
    assert seen == [7, 1_000, 1_001, 1_002]


def test_a_model_without_dropout_is_not_seeded() -> None:
    decoder = build_decoder(Parts(num_layers=3))
    seeded: list[str] = []

    def seed_of(name: str) -> int:
        seeded.append(name)
        return 0

    seed_layers(decoder, seed_of)
    torch.manual_seed(5)
    with fake_world(0, 1):
        compute = forward_of(mesh_of(1))
        rows = torch.randint(0, 60, (1, 9))
        compute.start_step(0, 1)
        before = torch.get_rng_state()
        compute(decoder, (rows[:, :-1],), rows, 0)
    assert not seeded
    assert torch.equal(torch.get_rng_state(), before)


MASKED = ("data.goldfish={one_in: 4, window_tokens: 3}", "data.loss_after_eod=false")


@pytest.mark.parametrize("z_loss", [0.0, 0.2])
def test_a_step_averages_over_counted_targets_and_evaluation_over_all(z_loss):
    recipe = mini(*MASKED)
    decoder = build_decoder(Parts(z_loss=z_loss)).double()
    batch = torch.randint(0, 60, (3, 2, 17), generator=torch.Generator().manual_seed(1))
    batch[0, :, ::3] = 7  # end of documents; microbatches have different counts
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    compute = forward_of(mesh_of(1), recipe, eod_id=7)
    compute.start_step(0, 3)
    compute.count_targets(batch)
    with torch.autocast("cpu", enabled=False):
        trained = []
        for number, rows in enumerate(batch):
            (to_differentiate,) = compute(decoder, (rows[:, :-1],), rows, number)
            trained.append(to_differentiate)
        means = compute.share_of_means()
        (held_out,) = compute(decoder.eval(), (batch[0, :, :-1],), batch[0], 0)
    dist.destroy_process_group()
    counted = LossMask(one_in=4, window_tokens=3, after_eod=False, eod_id=7)(batch)
    left = batch[..., 1:].masked_fill(~counted, -100)
    logits = decoder(batch[..., :-1].flatten(0, 1)).flatten(0, 1)
    expected = cross_entropy(logits, left.flatten())
    squares = logits.logsumexp(-1).square()[counted.flatten()]
    assert 0 < counted[0].sum() < counted[1].sum() < counted[1].numel()
    torch.testing.assert_close(compute.microbatch_losses.mean(), expected)
    torch.testing.assert_close(means[:2], torch.stack([expected, z_loss * squares.mean()]))
    torch.testing.assert_close(torch.stack(trained).mean(), means[:2].sum())
    whole = cross_entropy(decoder(batch[0, :, :-1]).flatten(0, 1), batch[0, :, 1:].flatten())
    torch.testing.assert_close(held_out, whole)


def test_targets_weigh_the_same_on_ranks_with_different_counts(two_ranks):
    recipe = in_precision(mini("data.loss_after_eod=false"), "float64")
    few, many = torch.full((1, 1, 501), 7), torch.arange(501).view(1, 1, -1) % 50 + 8
    few[..., -2] = 8  # the only counted target
    tree = recipe.model_dump(mode="json")
    for loss, gradient in two_ranks(count_unequally, tree, [few, many], 7):
        assert loss < 1e-12
        assert gradient < 1e-12


class Recording(Decoder):
    """A stage that records the masks it gets."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.final_norm = None
        self.position_ids = lambda length, device: torch.arange(length, device=device)
        self.sequence_slices = 1
        self.masks: list[CausalMask | None] = []

    def forward(self, inputs: Tensor, **given: Any) -> Tensor:
        self.masks.append(given["mask"])
        return torch.zeros(1)


def test_stages_of_a_rank_share_the_mask_of_a_microbatch() -> None:
    """Stages alternate; a mask is freed after all stages of the rank have used it."""
    layout = ["pipeline=2", "schedule=interleaved", "stages_per_rank=2"]
    words = [f"parallelism.{one}" for one in layout]
    recipe = mini("data.document_mask=true", "cluster.ranks=2", *words)
    batch = torch.randint(3, (3, 1, 9))
    first, second = Recording().eval(), Recording().eval()
    with fake_world(0, 2):
        compute = forward_of(build_mesh("cpu", recipe.parallelism), recipe)
        rows = list(batch)
        turns = [(first, 0), (first, 1), (second, 0), (first, 2), (second, 1), (second, 2)]
        for stage, number in turns:
            compute(stage, (rows[number][:, :-1],), rows[number], number)
        for once, again, tokens in zip(first.masks, second.masks, rows, strict=True):
            assert once is again
            assert isinstance(once, CausalMask)
            numbers = number_documents(tokens[:, :-1], 0)
            assert torch.equal(once.build_dense_mask(slice(None), 8)[:, 0], seen_in(numbers))
        assert compute._masks == {}
        # An aborted pass leaves a mask, which other rows must not use.
        compute(first, (rows[0][:, :-1],), rows[0], 0)
        compute(second, (rows[1][:, :-1],), rows[1], 0)
    assert first.masks[-1] is not second.masks[-1]


def seen_in(numbers: Tensor) -> Tensor:
    same = numbers[:, :, None] == numbers[:, None]
    return same & torch.ones(numbers.shape[1], numbers.shape[1]).tril().bool()
