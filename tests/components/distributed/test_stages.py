"""A stage keeps only its own parts; tied ends stay one weight."""

import pytest
import torch
from torch import Tensor

from components.config.model_spec.positions import LearnedSpec, OrderSpec, PositionsSpec
from components.distributed.pipeline import prune_to_stage
from components.model.decoder import Decoder
from tests.components.distributed import tensor_cases
from tests.components.distributed.layout_cases import Layout, ParallelModel, Whole, batch_of
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import Parts, build
from tests.components.model.comparison import gradient_of


def sum_ends(parts: Parts, layout: Layout) -> tuple[dict[str, Tensor], Tensor]:
    """Return this rank's rows of tied gradients and the gradient of the whole embedding."""
    model = tensor_cases.randomized(parts)
    whole, sharded = Whole(model), ParallelModel(model, layout)
    batches = [batch_of(0, rank, microbatches=4) for rank in range(layout.data)]
    whole.backward(batches)
    sharded.backward(batches[sharded.mesh.data_rank])
    tied = {s.name: gradient_of(s.parameter).clone() for s in sharded.shards if s.tied}
    return tied, whole.gradients()["embedding.weight"]


def step_ends(parts: Parts, layout: Layout) -> list[Tensor]:
    """Return this rank's tied weight after two steps."""
    sharded = ParallelModel(tensor_cases.randomized(parts), layout)
    optimizer = torch.optim.AdamW([shard.parameter for shard in sharded.shards], lr=0.01)
    for step in range(2):
        sharded.backward(batch_of(step, sharded.mesh.data_rank))
        optimizer.step()
        sharded.parallel.all_gather_updated()
    return [weight for name, weight in sharded.weights().items() if name == "embedding.weight"]


TOLERANCE = 1e-13

LEARNED = LearnedSpec(num_positions=tensor_cases.LENGTH)
GPT = Parts(
    positions=LEARNED,
    norm=tensor_cases.LAYER_NORM,
    embedding_norm=tensor_cases.LAYER_NORM,
    tied=True,
    num_layers=4,
)
LLAMA = Parts(num_layers=4)
EMBEDDING = {"embedding.weight"}
EMBEDDING_NORM = {"embedding_norm.weight", "embedding_norm.bias"}
POSITIONS = {"positions.weight"}


def outer(decoder: Decoder) -> set[str]:
    """Name the parameters outside of the layers."""
    return {name for name, _ in decoder.named_parameters() if not name.startswith("layers.")}


@pytest.mark.parametrize(
    ("parts", "first", "last"),
    [
        (
            GPT,
            EMBEDDING | EMBEDDING_NORM | POSITIONS,
            EMBEDDING | {"final_norm.weight", "final_norm.bias"},
        ),
        (
            GPT._replace(tied=False),
            EMBEDDING | EMBEDDING_NORM | POSITIONS,
            {"final_norm.weight", "final_norm.bias", "head.weight"},
        ),
        (LLAMA, EMBEDDING, {"final_norm.weight", "head.weight"}),
        (LLAMA._replace(tied=True), EMBEDDING, EMBEDDING | {"final_norm.weight"}),
    ],
    ids=["tied gpt", "gpt", "llama", "tied llama"],
)
def test_each_stage_keeps_its_parts(parts: Parts, first: set[str], last: set[str]) -> None:
    expected = {(True, False): first, (False, False): set[str](), (False, True): last}
    whole = build(parts)
    for (is_first, is_last), names in expected.items():
        stage = build(parts)
        tied = prune_to_stage(stage, range(1, 3), first=is_first, last=is_last)
        assert tied == (parts.tied and (is_first or is_last))
        assert outer(stage) == names
        assert list(stage.layers) == ["1", "2"]
        assert dict(stage.named_parameters()).keys() <= dict(whole.named_parameters()).keys()


def test_a_single_stage_keeps_all_parts() -> None:
    stage, whole = build(GPT), build(GPT)
    assert not prune_to_stage(stage, range(4), first=True, last=True)
    assert list(stage.state_dict()) == list(whole.state_dict())


@pytest.mark.parametrize(
    "positions", [tensor_cases.ROTARY, OrderSpec()], ids=["rotary", "none"]
)
def test_positions_without_parameters_stay_on_every_stage(positions: PositionsSpec) -> None:
    stage = build(LLAMA._replace(positions=positions))
    prune_to_stage(stage, range(1, 2), first=False, last=False)
    assert stage.positions is not None


@pytest.mark.parametrize(
    "parts",
    [GPT, GPT._replace(tied=False), LLAMA, tensor_cases.GEMMA3._replace(num_layers=4)],
    ids=["tied gpt", "gpt", "llama", "tied gemma 3"],
)
def test_consecutive_stages_equal_the_whole_model(parts: Parts) -> None:
    whole = build(parts)
    stages = [build(parts) for _ in range(3)]
    for number, (stage, layers) in enumerate(zip(stages, (range(2), [2], [3]), strict=True)):
        stage.load_state_dict(whole.state_dict())
        prune_to_stage(stage, layers, first=number == 0, last=number == 2)
    names = {name for name, _ in whole.named_parameters()}
    assert {name for stage in stages for name, _ in stage.named_parameters()} == names
    tokens, targets, numbers = tensor_cases.batch()
    for documents in (None, numbers):
        hidden = stages[0](tokens, documents=documents)
        hidden = stages[1](hidden, documents=documents)
        loss = stages[2](hidden, documents=documents, targets=targets)
        assert torch.equal(loss, whole.compute_loss(tokens, targets, documents=documents))


TIED = Parts(tied=True, bias=True, norm=tensor_cases.RMS_NORM, num_layers=4, rows=62)


ENDS = {
    "one stage": (Layout(pipeline=2), [(0, 1)]),
    "two stages": (Layout(pipeline=2, schedule="interleaved", stages_per_rank=2), [(0, 1)]),
    "four stages": (Layout(pipeline=4), [(0, 3)]),
    "tensor": (Layout(pipeline=2, tensor=2), [(0, 2), (1, 3)]),
    "zero 1": (Layout(pipeline=2, shard=2, zero=1), [(0, 2), (1, 3)]),
    "zero 2": (Layout(pipeline=2, shard=2, zero=2), [(0, 2), (1, 3)]),
}


@pytest.mark.quick("one stage", "two stages", "tensor")
@pytest.mark.parametrize("case", ENDS)
def test_both_ends_have_the_same_bits_of_the_summed_gradient(run_layout, case):
    layout, pairs = ENDS[case]
    found = run_layout(sum_ends, TIED, layout)
    ends = {rank for pair in pairs for rank in pair}
    for rank, (tied, _) in enumerate(found):
        assert set(tied) == (EMBEDDING if rank in ends else set())
    sums = [tied.get("embedding.weight") for tied, _ in found]
    for first, last in pairs:
        assert torch.equal(sums[first], sums[last])
    _, expected = found[0]
    rows = torch.cat([sums[first] for first, _ in pairs])
    rows = rows[: len(expected)]  # without sharding each pair has all rows
    assert (rows - expected).abs().max() / expected.abs().max() < TOLERANCE


def test_both_ends_on_one_rank_are_one_weight(two_ranks: Ranks) -> None:
    """No twin is elsewhere, and both uses add up to the whole's gradient."""
    layout = Layout(pipeline=2, schedule="zbv", stages_per_rank=2)
    assert all(tied == {} for tied, _ in two_ranks(sum_ends, TIED, layout))
    found = two_ranks(step_ends, TIED, layout)
    assert [len(weights) for weights in found] == [1, 0]
    loop = two_ranks(step_ends, TIED, layout._replace(schedule="interleaved"))
    assert (found[0][0] - loop[0][0]).abs().max() < TOLERANCE


def test_after_steps_both_ends_are_still_one_weight(four_ranks: Ranks) -> None:
    layout = Layout(pipeline=2, shard=2, zero=1)
    (first, *others) = [weight for (weight,) in four_ranks(step_ends, TIED, layout)]
    assert all(torch.equal(first, other) for other in others)
