"""DeepSpeed's ZeRO as the engine of a run, around our decoder and optimizer."""

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
from components.engine.mesh_engine import Engine, Judge, NamedTensors
from components.engine.optimizer import build_optimizer
from components.errors import RecipeError
from components.model.decoder import Decoder
from components.optim.groups import set_rate
from components.optim.loss_scale import LossScaleState


class DeepSpeedEngine(Engine):
    """Train by ZeRO 0 to 3 over the data ranks, with the recipe's own optimizer.

    In float32 it computes what the mesh engine does. In bfloat16 and float16 the weights that
    the model computes with are themselves in that dtype, and so is the residual stream, as in
    the mesh engine, which computes under autocast; the float32 weights that the optimizer
    updates start from the same values. From ZeRO 1 on a norm that is not finite skips the step
    in any precision.
    Every rank's device holds the whole model once, at the start.

    Raises:
        RecipeError: a precision that DeepSpeed has not, or not on this device.
    """

    def __init__(
        self,
        *,
        recipe: Recipe,
        decoder: Decoder,
        compute: Compute,
        device: torch.device,
    ) -> None:
        dtype = compute_dtype(recipe.precision.compute, device)
        named = dict(decoder.named_parameters())
        # The optimizer sorts weights by their dimensions, which ZeRO 3 takes from them.
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
            # What positions return is no tensor, so no hook would gather their weights for the
            # backward pass; the whole decoder's does.
            for places in decoder.positions.parameters():
                deepspeed.zero.register_external_parameter(decoder, places)
        self._zero = recipe.parallelism.zero
        self.state = EngineState(self._engine, self.optimizer, named)
        for name, weight in exact.items():
            self.state.put(name, weight)
        self._scaler: Any = None
        if dtype == torch.float16:
            self._scaler = self._engine.optimizer.loss_scaler
            self._scaler.raise_error_at_min_scale = False  # as the mesh engine: try again

    @property
    def scale(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.cur_scale)

    def step(
        self, batch: Tensor, *, lr: float, norm_limit: float, judge: Judge
    ) -> Tensor | None:
        set_rate(self.optimizer, lr)
        # How many microbatches this step has: a batch may ramp up.
        size = self._engine.train_micro_batch_size_per_gpu() * self._engine.dp_world_size
        self._engine.set_train_batch_size(len(batch) * size)
        if not self._zero:
            return self._step_whole(batch, norm_limit, judge)
        self._engine.optimizer.gradient_accumulation_steps = len(batch)
        return self._step_sharded(batch, norm_limit, judge)

    def _step_whole(self, batch: Tensor, norm_limit: float, judge: Judge) -> Tensor | None:
        """Step without ZeRO: the optimizer is torch's, DeepSpeed would not tell the norm."""
        for number in range(len(batch)):
            self._engine.backward(self._loss(batch, number), scale_wrt_gas=False)
        if self.on_gradients is not None:
            self.on_gradients()
        weights = list(self._engine.module.parameters())
        norm = nn.utils.get_total_norm([one.grad for one in weights if one.grad is not None])
        agreed = judge(norm.double().square() / self._engine.dp_world_size)
        if agreed is None:
            self._engine.zero_grad()
            return None
        nn.utils.clip_grads_with_norm_(weights, norm_limit, norm)
        self._engine.step()
        return agreed

    def _step_sharded(self, batch: Tensor, norm_limit: float, judge: Judge) -> Tensor | None:
        """Step with ZeRO, which knows the norm and updates in one call.

        So the judge is asked after the last forward pass, and a step that it refuses gets
        gradients that are no number: those DeepSpeed itself leaves out, on all ranks.
        """
        scaling = self.scale_state()
        for number in range(len(batch)):
            loss, agreed = self._loss(batch, number), None
            if number == len(batch) - 1:
                agreed = judge(None)
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
        """Compute a microbatch's part of the step's mean loss."""
        self._engine.set_gradient_accumulation_boundary(number == len(batch) - 1)
        loss: Tensor = self._engine(batch[number], number)
        return loss / len(batch)

    def evaluate(self, rows: Tensor) -> Tensor | None:
        loss: Tensor = self._engine(rows, 0)
        return loss

    def settle(self) -> None:
        """Return at once: an update of DeepSpeed's ends with its step."""

    def weights(self) -> NamedTensors:
        return self.state.weights()

    def gradients(self) -> NamedTensors:
        return ((name, gradient / self.scale) for name, gradient in self.state.gradients())

    def scale_state(self) -> Mapping[str, Any] | None:
        if self._scaler is None:
            return None
        return LossScaleState(
            scale=self.scale,
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
    """A module whose forward pass is one microbatch: DeepSpeed's hooks hang on modules."""

    def __init__(self, decoder: Decoder, compute: Compute) -> None:
        super().__init__()
        self.decoder = decoder
        self._compute = compute

    def forward(self, rows: Tensor, number: int) -> Tensor:
        (loss,) = self._compute(self.decoder, (rows[:, :-1],), rows, number)
        return loss


def _import_deepspeed(device: torch.device) -> Any:
    """Import it for this kind of device; what it logs goes where logs go."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    # It asks for torchrun's name of the device, ZeRO 3 in later steps too; one rank has none.
    os.environ.setdefault("LOCAL_RANK", str(device.index or 0))
    # It calls torch by names that torch has newer ones for, at every collective.
    old_names = r"`torch\.distributed\.(all_gather_into|reduce_scatter)_tensor` is deprecated"
    warnings.filterwarnings("ignore", old_names, FutureWarning)  # its calls, not ours
    import deepspeed
    from deepspeed.utils import logger

    # None of its own operations is used. Asked which there are, it tries a compiler on each; on
    # a CPU it would go on to build one, for a minute, that sums over ranks past gloo.
    deepspeed.ops.__compatible_ops__ = {}
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    return deepspeed


def _check_device(deepspeed: Any, compute: torch.dtype) -> None:
    """Ask what DeepSpeed asks, which would end the ranks without a way out."""
    accelerator = deepspeed.accelerator.get_accelerator()
    if (compute == torch.float16 and not accelerator.is_fp16_supported()) or (
        compute == torch.bfloat16 and not accelerator.is_bf16_supported()
    ):
        raise RecipeError(
            "precision.compute",
            f"{str(compute).removeprefix('torch.')} is more than DeepSpeed trusts this device "
            "with",
            "choose another dtype, or parallelism.engine=mesh",
        )
