"""Training steps of one process, beside published rules and a step without a repeat."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.distributed.experts import AllToAllDispatcher
from components.dryrun.fake_world import trainer_of
from components.fault_tolerance.guards import StepVerdict
from components.model.moe import expert_layers
from components.optim.ademamix import AdEMAMix
from components.optim.muon import Muon
from components.train.batches import StepBatch
from components.train.module import Pretraining
from components.train.step_metrics import StepRecord
from tests.components.optim.test_ademamix import half_life

STEP = 32  # tokens
SMALL = (
    *("model.num_layers=2", "model.dim=16", "model.attention.head_dim=4"),
    *("model.mlp.ffn_dim=8", "tokenizer.vocab_size=768", "budget.sequence_length=16"),
    *(f"budget.global_batch_tokens={STEP}", "parallelism.microbatch_sequences=1"),
    *(f"budget.total_tokens={10 * STEP}", "parallelism.compile=none"),
)
LOWER = "guard.lower_lr={factor: 0.5, over_tokens: 64}"


class Taken(NamedTuple):
    """A step's record, the limit of its norm, and the warm-ups of its optimizer."""

    record: StepRecord
    norm_limit: float
    warm_ups: tuple[float, ...]


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def build(*words: str, recipe: str = "teuken7b") -> Pretraining:
    point = compose_recipe(read_point([f"recipe={recipe}", *SMALL, *words]))
    module = Pretraining(recipe=point, eod_id=0)
    module.trainer = trainer_of(point)
    module.configure_model()
    module.configure_optimizers()
    return module


def take(module: Pretraining, steps: int) -> list[Taken]:
    found: list[Taken] = []
    engine_step, optimizer = module.engine.step, module.engine.optimizer

    def step(batch: torch.Tensor, **given: Any) -> torch.Tensor | None:
        limits.append(given["norm_limit"])
        return engine_step(batch, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.engine, "step", step)
        for number in range(steps):
            limits = list[float]()
            generator = torch.Generator().manual_seed(number)
            module.training_step(StepBatch(torch.randint(768, (2, 1, 17), generator=generator)))
            warm_ups: tuple[float, ...] = ()
            if isinstance(optimizer, AdEMAMix):
                warm_ups = optimizer.slow_weight, optimizer.beta3
            if isinstance(optimizer, Muon):
                warm_ups = (optimizer.current_momentum,)
            assert module.last is not None
            found.append(Taken(module.last, limits[-1], warm_ups))
    return found


def test_gradients_are_clipped_above_the_limit_from_step_1() -> None:
    words = ("optimizer.clip_norm=0.25", f"optimizer.clip_after_tokens={2 * STEP}")
    taken = take(build(*words), 4)
    assert [one.norm_limit for one in taken] == [torch.inf, torch.inf, 0.25, 0.25]


def test_a_lowered_learning_rate_is_recorded_for_its_tokens() -> None:
    module = build(LOWER)
    first = take(module, 1)
    spike = StepVerdict(rule="non_finite", action="lower_lr", cause="", evidence={})
    module.guard.record_bad_step(spike, tokens=module.progress.tokens, window=(2, 2))
    schedule = build_node(module.recipe.schedule, "schedule")
    peak = module.recipe.optimizer["lr"]
    taken = [*first, *take(module, 4)]
    factors = [one.record.lr / (peak * schedule(n * STEP)) for n, one in enumerate(taken)]
    assert factors == pytest.approx([1.0, 0.5, 0.5, 1.0, 1.0])


def test_ademamix_warms_up_as_published_from_step_1() -> None:
    """Algorithm 1 of arXiv 2409.03137: step t has done t / 4 of warm-ups of four steps."""
    lengths = [f"optimizer.{each}_warmup_tokens={4 * STEP}" for each in ("alpha", "beta3")]
    taken = take(build("optimizer=ademamix", *lengths), 5)
    alphas, betas = zip(*(one.warm_ups for one in taken), strict=True)
    assert alphas == pytest.approx([2.0, 4.0, 6.0, 8.0, 8.0])
    means = [(4 - t) / 4 * half_life(0.9) + t / 4 * half_life(0.9999) for t in (1, 2, 3, 4, 4)]
    assert betas == pytest.approx([0.5 ** (1 / (1 + mean)) for mean in means], abs=1e-7)


def test_muons_momentum_warms_up_as_published_from_step_0() -> None:
    """``get_muon_momentum`` of karpathy/nanochat at b399e43, scripts/base_train.py."""
    words = ("optimizer.momentum_start=0.85", f"optimizer.momentum_warmup_tokens={4 * STEP}")
    taken = take(build("optimizer=muon", *words), 5)
    published = [(1 - n / 4) * 0.85 + n / 4 * 0.95 for n in range(5)]
    assert [momentum for one in taken for momentum in one.warm_ups] == pytest.approx(published)


def test_a_repeated_step_records_only_its_second_attempt() -> None:
    words = ("model.mlp.num_experts=4", "model.mlp.path=grouped")
    records, weights = [], []
    for bound in (None, 0.5):  # half of the pairs have room
        module = build(*words, recipe="mula7b_a1b")
        for layer in expert_layers(module.stage_decoders[0]):
            alone = module.parallel_mesh.get_axis("expert")
            layer.mixture = AllToAllDispatcher(layer.mixture, alone, overlap=1, bound=bound)
        (taken,) = take(module, 1)
        assert (module.overflow_pairs > 0) == (bound is not None)
        records.append(taken.record)
        weights.append([weight.detach() for _, weight in module.named_weights()])
    exact, repeated = records
    for figure in ("loss", "auxiliary_loss", "expert_load", "gradient_norm"):
        assert getattr(repeated, figure) == getattr(exact, figure)
    assert all(map(torch.equal, *weights))
