"""What an engine cannot do is refused when a recipe is composed, with a way out."""

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.rules.engine import check_precision
from components.errors import RecipeError
from tests.components.config.conftest import Compose

DEEPSPEED = (
    "scale=full",
    "parallelism.engine=deepspeed",
    "parallelism.pipeline=1",
    "parallelism.tensor=1",
    "parallelism.sequence_parallel=false",
    "parallelism.data=64",
    "cluster.ranks=64",
    "cluster.device=cpu",
    "precision.compute=float32",
)
FP16 = ("precision=fp16", "precision.compute=float16")


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_every_stage_is_taken_in_float32(compose: Compose, zero: int) -> None:
    assert compose(*DEEPSPEED, f"parallelism.zero={zero}").parallelism.zero == zero


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("parallelism.compile=layers", "parallelism.zero=3"),
            r"parallelism\.compile: layers, but DeepSpeed's hooks at zero=3 break compiled "
            r"graphs\n"
            r"  set parallelism\.compile=none, parallelism\.zero=2, or ",
        ),
        (
            ("parallelism.tensor=2", "cluster.ranks=128"),
            r"parallelism\.tensor: 2, but DeepSpeed supports only data ranks\n"
            r"  set parallelism\.tensor=1, or parallelism\.engine=mesh",
        ),
        (
            ("parallelism.pipeline=2", "cluster.ranks=128"),
            r"parallelism\.pipeline: 2, but .*\n  set parallelism\.pipeline=1, or",
        ),
        (
            ("parallelism.context=2", "cluster.ranks=128"),
            r"parallelism\.context: 2, but .*\n  set parallelism\.context=1, or",
        ),
        (
            ("parallelism.data_shard=8",),
            r"parallelism\.data_shard: 8, but DeepSpeed shards over all 64 ranks\n"
            r"  set parallelism\.data_shard=64, or parallelism\.engine=mesh",
        ),
        (
            ("parallelism.zero=0", "parallelism.offload_optimizer=true"),
            r"parallelism\.offload_optimizer: true, but DeepSpeed cannot offload .*\n"
            r"  set parallelism\.zero=1 or",
        ),
        (
            ("parallelism.engine=mesh", "parallelism.offload_optimizer=true"),
            r"parallelism\.offload_optimizer: true, but the mesh engine keeps .*\n"
            r"  set parallelism\.offload_optimizer=false or parallelism\.engine=deepspeed",
        ),
        (
            ("precision.compute=float64",),
            r"precision\.compute: DeepSpeed does not support float64\n"
            r"  set precision\.compute=float32, or",
        ),
        (
            ("precision.reduce=float64",),
            r"precision\.reduce: DeepSpeed does not support float64\n"
            r"  set precision\.reduce=float32, or",
        ),
        (
            ("precision.accumulate=bfloat16",),
            r"precision\.accumulate: bfloat16, but DeepSpeed with float32 supports only "
            r"float32\n  set precision\.accumulate=float32, or",
        ),
        (
            ("precision.compute=bfloat16", "parallelism.zero=0"),
            r"parallelism\.zero: 0, but DeepSpeed saves float32 weights of bfloat16 .*\n"
            r"  set parallelism\.zero=1, or",
        ),
        (
            ("precision.compute=auto", "cluster.device=cuda", "parallelism.zero=0"),
            r"parallelism\.zero: 0, but DeepSpeed saves float32 weights of bfloat16",
        ),
        (
            (*FP16, "precision.loss_scale.initial=1_000.0"),
            r"precision\.loss_scale\.initial: 1,000\.0, but DeepSpeed requires a power of "
            r"two, at least 1\n  nearest valid value: 1,024\.0",
        ),
        (
            (*FP16, "precision.loss_scale.minimum=0.5"),
            r"precision\.loss_scale\.minimum: 0\.5, but DeepSpeed requires an integer.*"
            r"\n  nearest valid value: 1\.0",
        ),
    ],
)
def test_what_the_engine_cannot_do_is_refused(
    compose: Compose, words: tuple[str, ...], message: str
) -> None:
    names = [word.partition("=")[0] for word in words]
    kept = [word for word in DEEPSPEED if word.partition("=")[0] not in names]
    with pytest.raises(RecipeError, match=message):
        compose(*kept, *words)


def test_muon_on_flat_shards_is_refused(compose: Compose) -> None:
    message = (
        r"^parallelism\.engine: Muon updates whole matrices.*\n"
        r"  set parallelism\.engine=mesh or optimizer=adamw"
    )
    with pytest.raises(RecipeError, match=message):
        compose(*DEEPSPEED, "optimizer=muon")


def test_biases_of_routers_are_refused() -> None:
    words = ("recipe=mula7b_a1b", "parallelism.engine=deepspeed", "parallelism.expert=1")
    said = r"parallelism\.engine: DeepSpeed checkpoints cannot store router biases"
    with pytest.raises(RecipeError, match=said):
        compose_recipe(read_point([*words, "model.mlp.balance_rate=0.1"]))


def test_experts_over_ranks_are_refused() -> None:
    words = ["recipe=mula20b_a2b", "parallelism.engine=deepspeed", "cluster.ranks=4"]
    with pytest.raises(RecipeError, match=r"parallelism\.expert: 2, but DeepSpeed supports"):
        compose_recipe(read_point(words))


def test_what_auto_stands_for_is_checked_where_it_is_known(compose: Compose) -> None:
    words = [word for word in DEEPSPEED if not word.startswith(("cluster.dev", "precision"))]
    recipe = compose(*words, "precision.compute=auto", "parallelism.zero=0")
    check_precision(recipe, "float32")
    with pytest.raises(
        RecipeError,
        match=r"parallelism\.zero: 0, but DeepSpeed saves float32 weights of bfloat16",
    ):
        check_precision(recipe, "bfloat16")
