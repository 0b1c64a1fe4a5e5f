"""DeepSpeed's JSON, made from the recipe: every key of it that we set is set here.

The table of which recipe key gives which of DeepSpeed's is in docs/deepspeed.md.
"""

from math import log2
from typing import Any

from components.spec.engine_rules import check_precision
from components.spec.recipe import Recipe

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
# DeepSpeed's own default, in numbers; a small model needs no buffer of gigabytes.
_MOST_IN_BUCKET = 500_000_000
# Vectors stay whole on every rank, matrices do not: the rule of Hugging Face's integration.
_PERSISTENT_WIDTHS = 10


def deepspeed_config(recipe: Recipe, compute: str) -> dict[str, Any]:
    """Write what `deepspeed.initialize` is given; ``compute`` is what ``auto`` stands for.

    The batch is the one after a ramp-up: the engine sets the number of microbatches, the
    learning rate and the limit of the norm anew for every step.

    Raises:
        RecipeError: a precision that DeepSpeed has not.
    """
    check_precision(recipe, compute)
    degrees = recipe.parallelism
    microbatches = recipe.derived.microbatches_per_step
    clips = degrees.zero > 0  # without ZeRO the optimizer is ours alone, and so is clipping
    return {
        "train_batch_size": degrees.microbatch_sequences * microbatches * degrees.data,
        "train_micro_batch_size_per_gpu": degrees.microbatch_sequences,
        "gradient_accumulation_steps": microbatches,
        "gradient_clipping": recipe.optimizer["clip_norm"] if clips else 0.0,
        "communication_data_type": _DTYPES[recipe.precision.reduce],
        "data_types": {"grad_accum_dtype": _DTYPES[recipe.precision.accumulate]},
        "bf16": {"enabled": compute == "bfloat16"},
        "fp16": _fp16(recipe) if compute == "float16" else {"enabled": False},
        "zero_optimization": _zero(recipe),
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


def _zero(recipe: Recipe) -> dict[str, Any]:
    degrees, shape = recipe.parallelism, recipe.shape
    zero: dict[str, Any] = {
        "stage": degrees.zero,
        "reduce_bucket_size": min(_MOST_IN_BUCKET, shape.total_parameters),
        "offload_optimizer": {"device": "cpu" if degrees.offload_optimizer else "none"},
    }
    if degrees.zero == 3:
        zero["stage3_param_persistence_threshold"] = _PERSISTENT_WIDTHS * shape.dim
    return zero
