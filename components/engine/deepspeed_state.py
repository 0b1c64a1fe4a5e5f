"""DeepSpeed's configuration (its JSON), and its state by the model's own names and shapes.

docs/deepspeed.md maps recipe keys to DeepSpeed's keys. The state has the names of `ShardState`:
either engine can resume from the other's checkpoints.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import log2
from typing import Any

import torch
import torch.distributed as dist
from deepspeed import utils
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero import GatheredParameters
from torch import Tensor, nn

from components.checkpoint.saving import MOMENTS, WEIGHTS, Read, master_of
from components.config.recipe import Recipe
from components.config.rules.engine import accumulate_dtype, check_precision
from components.config.schema.sections import DEEPSPEED_BUCKET
from components.distributed.weight_shards import rows_of

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
# Vectors stay whole on every rank, matrices do not. Hugging Face's integration has this rule.
_PERSISTENT_WIDTHS = 10


def deepspeed_config(recipe: Recipe, compute: str) -> dict[str, Any]:
    """Return the config for `deepspeed.initialize`; ``compute`` is the resolved dtype."""
    check_precision(recipe, compute)
    degrees, microbatches = recipe.parallelism, recipe.derived_numbers.microbatches_per_step
    parameters = recipe.decoder_spec.total_parameters
    collectives = degrees.deepspeed.model_dump() if degrees.deepspeed else {}
    sizes = {"reduce_bucket_size": DEEPSPEED_BUCKET} | collectives
    # A small model needs no buffers of gigabytes. DeepSpeed asserts an even size.
    enough = parameters + parameters % 2
    zero: dict[str, Any] = {
        "stage": degrees.zero,
        **{
            key: min(value, enough) if key.endswith("bucket_size") else value
            for key, value in sizes.items()
        },
        "offload_optimizer": {"device": "cpu" if degrees.offload_optimizer else "none"},
    }
    if degrees.zero == 3:
        zero["stage3_param_persistence_threshold"] = (
            _PERSISTENT_WIDTHS * recipe.decoder_spec.dim
        )
    clips = degrees.zero > 0  # without ZeRO our engine clips
    return {
        "train_batch_size": degrees.microbatch_sequences * microbatches * degrees.data,
        "train_micro_batch_size_per_gpu": degrees.microbatch_sequences,
        "gradient_accumulation_steps": microbatches,
        "gradient_clipping": recipe.optimizer["clip_norm"] if clips else 0.0,
        "communication_data_type": _DTYPES[recipe.precision.reduce],
        "data_types": {"grad_accum_dtype": _DTYPES[accumulate_dtype(recipe, compute)]},
        "bf16": {"enabled": compute == "bfloat16"},
        "fp16": _fp16(recipe) if compute == "float16" else {"enabled": False},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,  # the optimizer is the recipe's own
        "zero_force_ds_cpu_optimizer": False,
    }


def _fp16(recipe: Recipe) -> dict[str, Any]:
    scaling = recipe.precision.loss_scale
    assert not isinstance(scaling, str), "the recipe's rules ask for one with float16"
    return {
        "enabled": True,
        "loss_scale": 0,  # dynamic
        "initial_scale_power": int(log2(scaling.initial)),
        "loss_scale_window": scaling.window,
        "hysteresis": scaling.hysteresis,
        "consecutive_hysteresis": False,
        "min_loss_scale": int(scaling.minimum),
    }


@dataclass(eq=False)
class EngineState:
    """Weights, gradients and optimizer state of all ranks; all ranks call every method."""

    engine: DeepSpeedEngine
    optimizer: torch.optim.Optimizer
    named: Mapping[str, nn.Parameter]

    def __post_init__(self) -> None:
        self._zero = int(self.engine.zero_optimization_stage())
        # Before the first step: DeepSpeed finds the state of later groups only if all state
        # exists at its first lookup.
        self._make()

    def iterate_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and the whole float32 value of every weight."""
        for name, weight in self.named.items():
            yield name, self._weight(weight)

    def iterate_gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every averaged gradient whole, as rows, times the loss scale."""
        for name, weight in self.named.items():
            gradient = utils.safe_get_full_grad(weight) if self._zero else weight.grad
            assert gradient is not None
            yield name, rows_of(gradient.view(_shape(weight)))

    def collect_tensors(self) -> dict[str, Tensor]:
        """Return this rank's share of weights and state by name; each is whole on one rank."""
        ranks, rank = dist.get_world_size(), dist.get_rank()
        tensors: dict[str, Tensor] = {}
        for place, (name, weight) in enumerate(self.named.items()):
            whole = {f"model.{name}": self._weight(weight)}
            for key, piece in self._state_of(weight).items():
                is_alike = _is_alike(piece)
                if self._zero and is_alike:
                    piece = utils.safe_get_full_optimizer_state(weight, key)
                # All weights of a piece share a counter. A file cannot express that.
                value = rows_of(piece.view(_shape(weight))) if is_alike else piece.clone()
                whole[f"optimizer.state.{name}.{key}"] = value
            if place % ranks == rank:
                tensors |= {key: value.cpu() for key, value in whole.items()}
        return tensors

    def select_own_tensors(self) -> dict[str, Tensor]:
        return self.collect_tensors()

    def load_tensors(
        self, read: Read, saved: Collection[str], *, fresh_optimizer: bool
    ) -> None:
        """Load weights and state one weight at a time; no rank stores all of them."""
        ranks, rank = dist.get_world_size(), dist.get_rank()
        for place, (name, weight) in enumerate(self.named.items()):
            value = torch.empty(_shape(weight), device=weight.device)
            rows = rows_of(value)
            has_master = master_of(name) in saved
            whole = {master_of(name): rows} if has_master else {f"{WEIGHTS}{name}": value}
            pieces = self._state_of(weight)
            moments = {}
            for key, piece in pieces.items():
                like = torch.zeros_like(piece, device=weight.device)
                alike = torch.zeros_like(rows) if _is_alike(piece) else like
                moments[f"{MOMENTS}{name}.{key}"] = alike
            wanted = whole if fresh_optimizer else whole | moments
            read(wanted if place % ranks == rank else {})
            for tensor in wanted.values():
                dist.broadcast(tensor, place % ranks)
            self.set_weight(name, value)
            for key, piece in pieces.items():
                value = moments[f"{MOMENTS}{name}.{key}"]
                self._put_state(
                    weight, key, value.view(_shape(weight)) if _is_alike(piece) else value
                )

    @torch.no_grad()
    def set_weight(self, name: str, value: Tensor) -> None:
        """Set a weight to ``value``: the float32 master, and the rounded compute weight."""
        weight = self.named[name]
        value = value.to(weight.device)
        if self._zero == 3:
            utils.safe_set_local_fp32_param(weight, _own_part(weight, value))
            with GatheredParameters([weight], modifier_rank=0):
                if dist.get_rank() == 0:
                    weight.copy_(value)
            return
        if self._zero:
            utils.safe_set_full_fp32_param(weight, value)
        weight.copy_(value)

    def _weight(self, weight: nn.Parameter) -> Tensor:
        if self._zero == 0:
            return weight.detach()
        whole: Tensor = utils.safe_get_full_fp32_param(weight).view(_shape(weight))
        return whole

    def _put_state(self, weight: nn.Parameter, key: str, value: Tensor) -> None:
        if self._zero == 0:
            self._state_of(weight)[key].copy_(value)
        elif not _is_alike(value):
            for _, piece in self._pieces():
                self.optimizer.state[piece][key].copy_(value)
        elif self._zero == 3:
            utils.safe_set_local_optimizer_state(weight, _own_part(weight, value), key)
        else:
            utils.safe_set_full_optimizer_state(weight, value, key)

    def _state_of(self, weight: nn.Parameter) -> dict[str, Tensor]:
        """Return the optimizer's state for a weight; under ZeRO, the first piece's state."""
        # Pieces differ only in length. Counters are the same in all pieces.
        owner = self._pieces()[0][1] if self._zero else weight
        state: dict[str, Tensor] = self.optimizer.state[owner]
        return state

    def _pieces(self) -> list[tuple[dict[str, object], nn.Parameter]]:
        """Return the tensors that the optimizer updates, each with its group."""
        groups = self.optimizer.param_groups
        if self._zero == 3:  # its groups are empty except during the update
            zero = self.engine.optimizer
            where = zero.sub_group_to_group_id
            flat = enumerate(zero.fp32_partitioned_groups_flat)
            return [(groups[where[index]], piece) for index, piece in flat]
        return [(group, piece) for group in groups for piece in group["params"]]

    def _make(self) -> None:
        """Create the optimizer's state by a step with zero gradients and zero learning rate."""
        pieces, groups = self._pieces(), self.optimizer.param_groups
        gradients = [piece.grad for _, piece in pieces]
        settings = [{key: group[key] for key in ("lr", "params")} for group in groups]
        for group in groups:
            group["lr"] = 0.0
            group["params"] = [piece for owner, piece in pieces if owner is group]
        for _, piece in pieces:
            piece.grad = torch.zeros_like(piece)
        self.optimizer.step()
        for group, saved in zip(groups, settings, strict=True):
            group.update(saved)
        for (_, piece), gradient in zip(pieces, gradients, strict=True):
            piece.grad = gradient  # where state is offloaded DeepSpeed keeps a buffer here
            for value in self.optimizer.state[piece].values():
                value.zero_()
        if self._zero in {1, 2}:
            self.engine.optimizer._lazy_init_hp_params_optimizer_state()


def _shape(weight: nn.Parameter) -> torch.Size:
    shape: torch.Size = getattr(weight, "ds_shape", weight.shape)
    return shape


def _is_alike(state: Tensor) -> bool:
    """Return whether the state has one number per weight element, unlike a step counter."""
    return state.dim() > 0


def _own_part(weight: nn.Parameter, value: Tensor) -> Tensor:
    """Return this rank's ZeRO 3 part of ``value``; zeros pad the last rank's part."""
    part = getattr(weight, "ds_tensor").numel()  # noqa: B009  # DeepSpeed added it
    padded = value.new_zeros(part * dist.get_world_size())
    padded[: value.numel()] = value.flatten()
    return padded[part * dist.get_rank() :][:part]
