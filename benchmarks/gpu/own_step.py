"""Our training step of a run with one rank: the recipe's module and its engine.

Weights are initialized on the device, in seconds instead of the minutes of `draw_weights`, and
tokens are random. Everything else is the same as in `run.py`.
"""

from collections.abc import Sequence
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__
from typing_extensions import override

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.distributed.devices import lone_backend
from components.dryrun.fake_world import trainer_of
from components.engine import parallelize
from components.engine.parallelize import RankModel
from components.model.decoder import Decoder
from components.model.first_weights import initial_constant, initial_stds
from components.train.batches import StepBatch
from components.train.module import Pretraining

DOCUMENT_TOKENS = 1_024


def compose_case(words: Sequence[str]) -> Recipe:
    """Compose the recipe of a case for the device that torch detects."""
    kind = "cpu" if not torch.accelerator.is_available() else "auto"
    return compose_recipe(read_point([*words, f"cluster.device={kind}"]))


def draw_tokens(recipe: Recipe, device: torch.device) -> Tensor:
    """Draw the tokens of a step, (microbatches, sequences, length + 1), with document ends."""
    count = recipe.derived_numbers.microbatches_per_step
    rows, length = recipe.parallelism.microbatch_sequences, recipe.budget.sequence_length
    end = recipe.decoder_spec.vocab_size - 1
    tokens = torch.randint(end, (count, rows, length + 1), device=device)
    tokens[..., DOCUMENT_TOKENS::DOCUMENT_TOKENS] = end
    return tokens


def join_world(device: torch.device) -> None:
    """Initialize a process group of one rank; some peers need the device's own backend."""
    if dist.is_initialized():
        return
    backend = lone_backend(device.type)
    backend = backend if backend == "gloo" else f"cpu:gloo,{device.type}:{backend}"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


class OurStep:
    """Steps of ``recipe`` on ``device``; each call returns the loss of its batch."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        join_world(device)
        self.recipe, self._device = recipe, device
        self._module = _DeviceDrawn(recipe=recipe, eod_id=recipe.decoder_spec.vocab_size - 1)
        self._module.trainer = trainer_of(recipe)
        self._module.to(device)
        self._module.configure_model()
        self._module.configure_optimizers()

    def __call__(self) -> Tensor:
        self._module.training_step(StepBatch(draw_tokens(self.recipe, self._device)))
        assert self._module.last is not None, "the step was not taken"
        return torch.tensor(self._module.last.loss)


class _DeviceDrawn(Pretraining):
    @override
    def build_model(self) -> RankModel:
        with patch.object(parallelize, "draw_weights", draw_on_device):
            return super().build_model()


@torch.no_grad()
def draw_on_device(decoder: Decoder, *, seed: int) -> None:
    """Draw weights with the recipe's standard deviations on the device, by its generator."""
    torch.manual_seed(seed)
    for name, weight, std in initial_stds(decoder):
        if std is None:
            weight.fill_(initial_constant(decoder, name))
        else:
            weight.normal_(std=std)
