"""DeepSpeed engine: ZeRO for our decoder and optimizer."""

import logging
import math
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from components.config.recipe import Recipe
from components.distributed.devices import compute_dtype
from components.distributed.pipeline import Compute
from components.engine.mesh_engine import AcceptStep, Engine, NamedTensors
from components.engine.optimizer import build_optimizer
from components.errors import RecipeError
from components.model.decoder import Decoder
from components.optim.groups import set_rate
from components.optim.loss_scale import LossScaleState


class DeepSpeedEngine(Engine):
    """Engine with DeepSpeed's ZeRO 0 to 3 over the data ranks and the recipe's own optimizer.

    In float32 its results equal the mesh engine's. In bfloat16 and float16 weights and residual
    stream have that dtype (as has the mesh engine's stream under autocast), and the float32
    masters start from the same values. From ZeRO 1 on a norm that is not finite skips the step
    in any precision. At the start every rank's device contains the whole model. Raises
    RecipeError if DeepSpeed does not support the precision on this device.
    """

    def __init__(
        self, *, recipe: Recipe, decoder: Decoder, compute: Compute, device: torch.device
    ) -> None:
        dtype = compute_dtype(recipe.precision.compute, device)
        named = dict(decoder.named_parameters())
        # The optimizer groups weights by their dimensions, which ZeRO 3 later removes.
        self.optimizer = build_optimizer(recipe, decoder, list(named.items()))
        exact = {}
        if dtype != torch.float32:
            exact = {name: weight.detach().cpu() for name, weight in named.items()}
        deepspeed = _import_deepspeed(device)
        from components.engine.deepspeed_state import (  # imports DeepSpeed, which is optional
            EngineState,
            deepspeed_config,
        )

        self.config = deepspeed_config(recipe, str(dtype).removeprefix("torch."))
        _check_device(deepspeed, dtype)
        self._engine, *_ = deepspeed.initialize(
            model=_Microbatch(decoder, compute), optimizer=self.optimizer, config=self.config
        )
        if recipe.parallelism.zero == 3 and decoder.positions is not None:
            # The module for positions does not return a tensor, so no hook would gather its
            # weights for the backward pass. The decoder's hook does.
            for places in decoder.positions.parameters():
                deepspeed.zero.register_external_parameter(decoder, places)
        self._zero = recipe.parallelism.zero
        self.state = EngineState(self._engine, self.optimizer, named)
        for name, weight in exact.items():
            self.state.set_weight(name, weight)
        self._scaler: Any = None
        if dtype == torch.float16:
            self._scaler = self._engine.optimizer.loss_scaler
            self._scaler.raise_error_at_min_scale = False  # try again, like the mesh engine

    @property
    def backward_scale(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.cur_scale)

    def step(
        self, batch: Tensor, *, lr: float, norm_limit: float, accept_step: AcceptStep
    ) -> Tensor | None:
        set_rate(self.optimizer, lr)
        # The number of microbatches changes while the batch size ramps up.
        size = self._engine.train_micro_batch_size_per_gpu() * self._engine.dp_world_size
        self._engine.set_train_batch_size(len(batch) * size)
        if not self._zero:
            return self._step_whole(batch, norm_limit, accept_step)
        self._engine.optimizer.gradient_accumulation_steps = len(batch)
        return self._step_sharded(batch, norm_limit, accept_step)

    def _step_whole(
        self, batch: Tensor, norm_limit: float, accept_step: AcceptStep
    ) -> Tensor | None:
        """Step without ZeRO: torch computes the norm, which DeepSpeed does not return."""
        for number in range(len(batch)):
            self._engine.backward(self._loss(batch, number), scale_wrt_gas=False)
        if self.on_gradients is not None:
            self.on_gradients()
        weights = list(self._engine.module.parameters())
        norm = nn.utils.get_total_norm([
            weight.grad for weight in weights if weight.grad is not None
        ])
        agreed = accept_step(norm.double().square() / self._engine.dp_world_size)
        if agreed is None:
            self._engine.zero_grad()
            return None
        nn.utils.clip_grads_with_norm_(weights, norm_limit, norm)
        self._engine.step()
        return agreed

    def _step_sharded(
        self, batch: Tensor, norm_limit: float, accept_step: AcceptStep
    ) -> Tensor | None:
        """Step with ZeRO, which computes the norm and updates the weights in one call.

        So ``accept_step`` is called after the last forward pass. A rejected step gets NaN
        gradients, and DeepSpeed itself skips the update on all ranks.
        """
        scaling = self.scale_state()
        for number in range(len(batch)):
            loss, agreed = self._loss(batch, number), None
            if number == len(batch) - 1:
                agreed = accept_step(None)
                loss = loss * math.nan if agreed is None else loss
            self._engine.backward(loss, scale_wrt_gas=False)
        if self.on_gradients is not None:
            self.on_gradients()
        self._engine.optimizer.clip_grad = norm_limit
        self._engine.step()
        if agreed is None:
            self.load_scale_state(scaling)
            return None
        return torch.as_tensor(self._engine.get_global_grad_norm(), dtype=torch.float64)

    def _loss(self, batch: Tensor, number: int) -> Tensor:
        """Return a microbatch's share of the step's mean loss."""
        self._engine.set_gradient_accumulation_boundary(number == len(batch) - 1)
        loss: Tensor = self._engine(batch[number], number)
        return loss / len(batch)

    def evaluate_rows(self, rows: Tensor) -> Tensor | None:
        loss: Tensor = self._engine(rows, 0)
        return loss

    def wait_for_weights(self) -> None:
        """Return at once: DeepSpeed finishes its update within the step."""

    def iterate_weights(self) -> NamedTensors:
        return self.state.iterate_weights()

    def iterate_gradients(self) -> NamedTensors:
        return (
            (name, gradient / self.backward_scale)
            for name, gradient in self.state.iterate_gradients()
        )

    def scale_state(self) -> Mapping[str, Any] | None:
        if self._scaler is None:
            return None
        return LossScaleState(
            scale=self.backward_scale,
            hysteresis_left=self._scaler.cur_hysteresis,
            good_steps=self._scaler.cur_iter - self._scaler.last_overflow_iter - 1,
        )

    def load_scale_state(self, state: Mapping[str, Any] | None) -> None:
        if self._scaler is not None and state is not None:
            self._scaler.cur_scale = state["scale"]
            self._scaler.cur_hysteresis = state["hysteresis_left"]
            self._scaler.cur_iter = state["good_steps"]
            self._scaler.last_overflow_iter = -1


class _Microbatch(nn.Module):
    """Module that computes one microbatch's loss; DeepSpeed registers its hooks on modules."""

    def __init__(self, decoder: Decoder, compute: Compute) -> None:
        super().__init__()
        self.decoder = decoder
        self._compute = compute

    def forward(self, rows: Tensor, number: int) -> Tensor:
        (loss,) = self._compute(self.decoder, (rows[:, :-1],), rows, number)
        return loss


def _import_deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed for this kind of device and send its log to stderr."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    # DeepSpeed reads torchrun's variable (ZeRO 3 also in later steps). A single rank lacks it.
    os.environ.setdefault("LOCAL_RANK", str(device.index or 0))
    # DeepSpeed calls deprecated torch functions at every collective.
    old_names = r"`torch\.distributed\.(all_gather_into|reduce_scatter)_tensor` is deprecated"
    warnings.filterwarnings("ignore", old_names, FutureWarning)  # its calls, not ours
    import deepspeed
    from deepspeed.utils import logger

    # The run uses none of DeepSpeed's own operations. To list them, DeepSpeed tries a compiler
    # on each, and on a CPU builds a reduction for a minute.
    deepspeed.ops.__compatible_ops__ = {}
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    return deepspeed


def _check_device(deepspeed: Any, compute: torch.dtype) -> None:
    """Raise RecipeError for a dtype that DeepSpeed rejects; DeepSpeed would end the ranks."""
    accelerator = deepspeed.accelerator.get_accelerator()
    if (compute == torch.float16 and not accelerator.is_fp16_supported()) or (
        compute == torch.bfloat16 and not accelerator.is_bf16_supported()
    ):
        raise RecipeError(
            "precision.compute",
            f"DeepSpeed does not support {str(compute).removeprefix('torch.')} on this device",
            "set another dtype, or parallelism.engine=mesh",
        )
