"""What an engine cannot do is refused when a recipe is composed, with a way out."""

import pytest

from components.config.rules.engine import check_precision
from components.errors import RecipeError
from tests.components.config.helpers import assert_refused, refusals, split_words, teuken

DEEPSPEED = (
    *("scale=full", "parallelism.engine=deepspeed", "parallelism.pipeline=1"),
    *("parallelism.tensor=1", "parallelism.sequence_parallel=false", "parallelism.data=64"),
    *("cluster.ranks=64", "cluster.device=cpu", "precision.compute=float32"),
)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_deepspeed_accepts_every_zero_stage_in_float32(zero: int) -> None:
    assert teuken(*DEEPSPEED, f"parallelism.zero={zero}").parallelism.zero == zero


@pytest.mark.parametrize(
    ("words", "message"),
    refusals(r"""
parallelism.compile=layers parallelism.zero=3
    parallelism\.compile: layers, but DeepSpeed's hooks at zero=3 break compiled graphs
    set parallelism\.compile=none, parallelism\.zero=2, or
parallelism.tensor=2 cluster.ranks=128
    parallelism\.tensor: 2, but DeepSpeed supports only data ranks
    set parallelism\.tensor=1, or parallelism\.engine=mesh
parallelism.pipeline=2 cluster.ranks=128
    parallelism\.pipeline: 2, but .* -> set parallelism\.pipeline=1, or
parallelism.context=2 cluster.ranks=128
    parallelism\.context: 2, but .* -> set parallelism\.context=1, or
parallelism.data_shard=8
    parallelism\.data_shard: 8, but DeepSpeed shards over all 64 ranks
    set parallelism\.data_shard=64, or parallelism\.engine=mesh
parallelism.zero=0 parallelism.offload_optimizer=true
    parallelism\.offload_optimizer: true, but DeepSpeed cannot offload .*
    set parallelism\.zero=1 or
parallelism.engine=mesh parallelism.offload_optimizer=true
    parallelism\.offload_optimizer: true, but the mesh engine keeps .*
    set parallelism\.offload_optimizer=false or parallelism\.engine=deepspeed
precision.compute=float64
    precision\.compute: DeepSpeed does not support float64 -> set precision\.compute=float32, or
precision.reduce=float64
    precision\.reduce: DeepSpeed does not support float64 -> set precision\.reduce=float32, or
precision.accumulate=bfloat16
    precision\.accumulate: bfloat16, but DeepSpeed with float32 supports only float32
    set precision\.accumulate=float32, or
precision.compute=bfloat16 parallelism.zero=0
    parallelism\.zero: 0, but DeepSpeed saves float32 weights of bfloat16 .*
    set parallelism\.zero=1, or
precision.compute=auto cluster.device=cuda parallelism.zero=0
    parallelism\.zero: 0, but DeepSpeed saves float32 weights of bfloat16
precision=fp16 precision.compute=float16 precision.loss_scale.initial=1_000.0
    precision\.loss_scale\.initial: 1,000\.0, but DeepSpeed requires a power of two, at least 1
    nearest valid value: 1,024\.0
optimizer=muon
    ^parallelism\.engine: Muon updates whole matrices.*
    set parallelism\.engine=mesh or optimizer=adamw
precision=fp16 precision.compute=float16 precision.loss_scale.minimum=0.5
    precision\.loss_scale\.minimum: 0\.5, but DeepSpeed requires an integer.*
    nearest valid value: 1\.0
"""),
)
def test_unsupported_engine_settings_are_refused(words: str, message: str) -> None:
    names = [word.partition("=")[0] for word in split_words(words)]
    kept = [word for word in DEEPSPEED if word.partition("=")[0] not in names]
    assert_refused(words, message, *kept)


@pytest.mark.parametrize(
    ("words", "message"),
    refusals(r"""
recipe=mula7b_a1b parallelism.expert=1 model.mlp.balance_rate=0.1
    parallelism\.engine: DeepSpeed checkpoints cannot store router biases
recipe=mula20b_a2b cluster.ranks=4 -> parallelism\.expert: 2, but DeepSpeed supports
"""),
)
def test_experts_that_deepspeed_cannot_train_are_refused(words: str, message: str) -> None:
    assert_refused(words, message, "parallelism.engine=deepspeed")


def test_the_value_of_auto_is_checked_once_known() -> None:
    words = [word for word in DEEPSPEED if not word.startswith(("cluster.dev", "precision"))]
    recipe = teuken(*words, "precision.compute=auto", "parallelism.zero=0")
    check_precision(recipe, "float32")
    said = r"parallelism\.zero: 0, but DeepSpeed saves float32 weights of bfloat16"
    with pytest.raises(RecipeError, match=said):
        check_precision(recipe, "bfloat16")
