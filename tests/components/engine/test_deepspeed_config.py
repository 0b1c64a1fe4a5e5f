"""DeepSpeed's configuration is derived from the recipe, key by key."""

from typing import Any

import pytest

from components.engine.deepspeed_state import deepspeed_config
from components.errors import RecipeError
from components.train import local_checks
from tests.recipes.compositions import compose

ALONE = (
    "scale=full",
    "parallelism.engine=deepspeed",
    "parallelism.pipeline=1",
    "parallelism.tensor=1",
    "parallelism.sequence_parallel=false",
)
# GPT 3.6B as it ran on SuperMUC-NG Phase 2: eight tiles, ZeRO 2, 64 sequences a step.
GPT = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "communication_data_type": "bf16",
    "data_types": {"grad_accum_dtype": "bf16"},
    "bf16": {"enabled": True},
    "fp16": {"enabled": False},
    "zero_optimization": {
        "stage": 2,
        "overlap_comm": True,
        "reduce_scatter": False,
        "reduce_bucket_size": 90_000_000,
        "allgather_bucket_size": 500_000_000,
        "offload_optimizer": {"device": "none"},
    },
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}


def config(recipe: str, compute: str, *words: str) -> dict[str, Any]:
    return deepspeed_config(compose(recipe, *ALONE, *words), compute)


def test_gpt_on_one_node_of_supermuc() -> None:
    assert config("gpt3b6", "bfloat16") == GPT


def test_teuken_in_float32_at_stage_3_with_its_optimizer_in_host_memory() -> None:
    words = ("parallelism.data=256", "cluster.ranks=256", "parallelism.zero=3")
    precision = ("precision.compute=float32", "parallelism.offload_optimizer=true")
    found = config("teuken7b", "float32", *words, *precision)
    assert found["train_batch_size"] == 1024
    assert found["bf16"] == found["fp16"] == {"enabled": False}
    assert found["communication_data_type"] == "fp32"
    assert found["zero_optimization"] == {
        "stage": 3,
        "reduce_bucket_size": 500_000_000,
        "offload_optimizer": {"device": "cpu"},
        "stage3_param_persistence_threshold": 40_960,
    }


def test_a_miniature_of_gpt_accumulates_in_float32_without_bfloat16() -> None:
    recipe = compose("gpt3b6")
    found = deepspeed_config(recipe, "float32")
    zero, parameters = found["zero_optimization"], recipe.decoder_spec.total_parameters
    assert found["data_types"] == {"grad_accum_dtype": "fp32"}
    assert not zero["reduce_scatter"]
    assert zero["reduce_bucket_size"] == zero["allgather_bucket_size"]
    assert zero["allgather_bucket_size"] - parameters in {0, 1}
    assert zero["allgather_bucket_size"] % 2 == 0


def test_the_loss_scale_of_bloom_is_passed_to_deepspeed() -> None:
    found = config("bloom560m", "float16", "parallelism.zero=1")
    assert found["fp16"] == {
        "enabled": True,
        "loss_scale": 0,
        "initial_scale_power": 12,
        "loss_scale_window": 500,
        "hysteresis": 2,
        "consecutive_hysteresis": False,
        "min_loss_scale": 1,
    }
    assert found["bf16"] == {"enabled": False}
    # A ramp-up is declared at its end.
    count = found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"]
    assert found["train_batch_size"] == 256
    assert found["train_batch_size"] % count == 0


def test_without_zero_deepspeed_does_not_clip() -> None:
    words = ("parallelism.zero=0", "precision.compute=float32")
    assert config("teuken7b", "float32", *words)["gradient_clipping"] == 0


def test_a_missing_engine_is_refused_before_training(monkeypatch):
    monkeypatch.setattr(local_checks, "find_spec", lambda name: None)
    recipe = compose("teuken7b", "parallelism.engine=deepspeed")
    with pytest.raises(RecipeError, match=r"parallelism\.engine: deepspeed, but DeepSpeed is"):
        local_checks.check_builds(recipe)


@pytest.mark.parametrize("scale", ["mini", "parity"])
def test_a_miniature_has_no_buffers_of_gigabytes(scale: str) -> None:
    words = [word for word in ALONE if not word.startswith("scale")]
    recipe = compose("teuken7b", *words, f"scale={scale}")
    zero = deepspeed_config(recipe, "float32")["zero_optimization"]
    assert zero["reduce_bucket_size"] == recipe.derived_numbers.parameters.total < 5_000_000


@pytest.mark.parametrize(
    ("zero", "word", "message"),
    [
        (1, "weights=float32", r"precision\.weights: float32, but DeepSpeed with bfloat16"),
        (1, "master=bfloat16", r"precision\.master: bfloat16, but DeepSpeed with bfloat16"),
        (0, "compute=auto", r"parallelism\.zero: 0, but DeepSpeed saves float32 weights of bf"),
    ],
)
def test_an_unsupported_precision_is_refused(zero: int, word: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        config("teuken7b", "bfloat16", f"parallelism.zero={zero}", f"precision.{word}")
