"""DeepSpeed's engine equals ours, and each resumes from checkpoints of the other."""

from collections.abc import Iterator

import pytest

from tests.components.distributed.ranks import Ranks
from tests.components.train import deepspeed_cases

ROUNDING = 2e-6  # of float32 sums in another order, relative to a tensor's largest number
STAGES = [
    ("parallelism.zero=0",),
    ("parallelism.zero=1",),
    ("parallelism.zero=2",),
    ("parallelism.zero=3",),
    ("parallelism.zero=2", "parallelism.offload_optimizer=true"),
    ("parallelism.zero=3", "parallelism.offload_optimizer=true"),
    ("parallelism.zero=3", "parallelism.recompute=full"),
]
ADEMAMIX = (
    *("optimizer=ademamix", "optimizer.beta3=0.99", "optimizer.eps=1.0e-3"),
    *("optimizer.alpha_warmup_tokens=0", "optimizer.beta3_warmup_tokens=0"),
)
BFLOAT16 = ("precision.compute=bfloat16", "precision.loss_scale=none")
# With a scale near the limit some steps overflow, and after others it grows.
FLOAT16 = (
    "precision.compute=float16",
    "precision.loss_scale={initial: 1048576.0, window: 3, hysteresis: 2, minimum: 1.0}",
)
LOW = [
    (*BFLOAT16, "parallelism.zero=1"),
    (*BFLOAT16, "parallelism.zero=2", "precision.accumulate=bfloat16"),
    (*BFLOAT16, "parallelism.zero=2", "parallelism.offload_optimizer=true"),
    (*BFLOAT16, "parallelism.zero=3", "precision.reduce=bfloat16"),
]

# Each ZeRO stage drops gradients differently, as do offloading and a loss scale.
REFUSING = [*STAGES[:2], STAGES[3], STAGES[4], (*FLOAT16, "parallelism.zero=2")]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as two:
        yield two


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [*STAGES, (*STAGES[1], *ADEMAMIX), (*STAGES[3], *ADEMAMIX)],
    ids=lambda words: " ".join(words[:2]),
)
def test_steps_from_the_same_weights_equal_our_engine(ranks, words):
    for found in ranks(deepspeed_cases.train, *words):
        assert found.at_start == 0
        assert max(found) < ROUNDING, found


@pytest.mark.quick("parallelism.zero=3")
@pytest.mark.parametrize(
    "words",
    [*STAGES[:6], *((*one, *ADEMAMIX) for one in STAGES[:4])],
    ids=lambda words: " ".join(words[:2]),
)
def test_either_engine_resumes_from_the_others_checkpoint(ranks, tmp_path, words):
    ours = ("mesh", "parallelism.zero=2", *(ADEMAMIX if ADEMAMIX[0] in words else ()))
    for both_ways in ranks(deepspeed_cases.change, tmp_path, ("deepspeed", *words), ours):
        for changed in both_ways:
            assert changed.at_once == 0
            assert changed.norm < ROUNDING
            assert changed.weight < ROUNDING
            assert changed.same_names


@pytest.mark.quick("parallelism.zero=1")
@pytest.mark.parametrize("words", REFUSING, ids=" ".join)
def test_a_rejected_step_changes_nothing(ranks: Ranks, words: tuple[str, ...]) -> None:
    for found in ranks(deepspeed_cases.leave_out, *words):
        assert found == (0.0, True, 0.0)


@pytest.mark.long
def test_in_bfloat16_a_checkpoint_keeps_the_float32_weights(ranks, tmp_path):
    one, other = (("deepspeed", *BFLOAT16, f"parallelism.zero={zero}") for zero in (1, 3))
    for both_ways in ranks(deepspeed_cases.change, tmp_path, one, other):
        for changed in both_ways:
            assert changed.at_once == 0
            assert changed.norm < 1e-2
            assert changed.same_names


@pytest.mark.long
@pytest.mark.parametrize("words", LOW, ids=" ".join)
def test_losses_in_bfloat16_are_close_to_our_engine(ranks, words):
    for at_start, ours, theirs in ranks(deepspeed_cases.losses_in, *words):
        assert at_start == 0
        assert theirs[-1] < theirs[0] - 1
        assert theirs == pytest.approx(ours, rel=2e-2)


@pytest.mark.long
@pytest.mark.parametrize("zero", [1, 3])
def test_float16_skips_overflows_and_scales_by_our_rule(ranks: Ranks, zero: int) -> None:
    for steps in ranks(deepspeed_cases.scale, *FLOAT16, f"parallelism.zero={zero}"):
        for step in steps:
            assert step.state == step.replayed
        assert {step.skipped for step in steps} == {True, False}


def test_a_device_without_float16_is_refused_with_a_remedy(ranks: Ranks) -> None:
    for message in ranks(deepspeed_cases.refuse_float16, *FLOAT16, "parallelism.zero=1"):
        assert message.startswith("precision.compute: DeepSpeed does not support float16")
        assert "parallelism.engine=mesh" in message


def test_creating_an_engine_leaves_torch_unchanged(ranks: Ranks) -> None:
    assert ranks(deepspeed_cases.leaves_torch_alone) == [True, True]
