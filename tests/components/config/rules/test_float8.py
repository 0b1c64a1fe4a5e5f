"""What float8 is for is composed; what it is not for is refused, with a way out."""

import pytest

from components.config.fingerprint import fingerprint_of
from components.config.key_groups import KeyGroup
from components.config.recipe import Recipe
from components.config.rules.check import warnings_of
from components.planner.job import job_from_recipe
from tests.components.config.helpers import assert_refused, refusals, teuken
from tests.recipes.compositions import compose

# A machine whose devices have it, and a layout without tensor ranks.
FULL = (
    *("playbook1b", "scale=full", "cluster=hopper", "cluster.ranks=8"),
    *("parallelism.data=8", "parallelism.tensor=1", "parallelism.pipeline=1"),
    "parallelism.sequence_parallel=false",
)


def full(*words: str) -> Recipe:
    return compose(*FULL, *words)


def test_float8_is_a_precision_and_changes_only_mathematics() -> None:
    plain, float8 = full(), full("precision=fp8")
    assert float8.precision.compute == "float8"
    assert float8.precision.accumulate == plain.precision.accumulate
    trees = [one.model_dump(mode="json") for one in (plain, float8)]
    prints = {group: {fingerprint_of(tree, group) for tree in trees} for group in KeyGroup}
    changed = [group for group, found in prints.items() if len(found) > 1]
    assert changed == [KeyGroup.MATHEMATICS]


@pytest.mark.parametrize("name", ["teuken7b", "gpt175b", "bloom7b1", "mula220b_a10b"])
def test_a_float8_miniature_has_widths_that_fit(name: str) -> None:
    shape = compose(name, "scale=mini", "precision=fp8").decoder_spec
    widths = [shape.dim, shape.attention.num_kv_heads * shape.attention.head_dim]
    if not shape.mlp.num_experts:
        widths.append(shape.mlp.ffn_dim)
    assert not any(width % 16 for width in widths)


def test_a_miniature_without_float8_has_the_precision_of_its_device() -> None:
    recipe = teuken("scale=mini", "precision=bf16")
    assert recipe.precision.compute == "auto"
    assert recipe.decoder_spec.mlp.ffn_dim == 840


@pytest.mark.parametrize(
    ("words", "message"),
    refusals(r"""
model.dim=40 model.attention.head_dim=16
    model\.dim: width 40 of a linear map is not a multiple of 16 \(float8\)
    set this width to 48, or precision\.compute=bfloat16
model.attention.num_heads=3 model.attention.num_kv_heads=3 model.attention.head_dim=8
    model\.attention\.head_dim: width 24 of
model.attention.num_heads=4 model.attention.num_kv_heads=1 model.attention.head_dim=8
    model\.attention\.num_kv_heads: width 8 of
model.mlp.ffn_dim=840 -> model\.mlp\.ffn_dim: width 840 of
parallelism.engine=deepspeed
    parallelism\.engine: deepspeed rounds weights to bfloat16 before .*
    set parallelism\.engine=mesh, or precision\.compute=bfloat16
cluster.ranks=2 parallelism.data=1 parallelism.tensor=2
    parallelism\.tensor: 2 would split rows, but a float8 row has one scale
    set tensor to 1, or precision\.compute=bfloat16
precision.loss_scale={initial: 1.0, window: 5, hysteresis: 1, minimum: 1.0}
    precision\.loss_scale: float8 ignores a loss scale
"""),
)
def test_unsupported_float8_settings_are_refused(words: str, message: str) -> None:
    assert_refused(words, message, "scale=mini", "precision=fp8")


def test_experts_may_have_any_width() -> None:
    words = ("scale=mini", "precision=fp8", "model.mlp.ffn_dim=40")
    assert_refused("recipe=mula1b", r"model\.mlp\.ffn_dim", *words)
    assert compose("mula7b_a1b", *words).decoder_spec.mlp.ffn_dim == 40


@pytest.mark.parametrize("cluster", ["juwels", "smng_p2", "jean_zay", "jean_zay_v100"])
def test_a_profile_without_a_float8_peak_is_refused(cluster: str) -> None:
    words = ("scale=full", f"cluster={cluster}", "budget.ramp_up=none", "precision=fp8")
    said = (
        r"precision\.compute: float8, but the profile of .* has no float8 peak\n  use another "
    )
    assert_refused(
        "recipe=bloom560m", said + r"cluster, or precision\.compute=bfloat16", *words
    )
    emulated = compose("bloom560m", *words, "cluster.device=cpu")
    assert emulated.precision.compute == "float8"


def test_float8_is_planned_as_bfloat16_with_a_note() -> None:
    float8 = full("precision=fp8", "parallelism.compile=layers")
    words = ("parallelism.compile=layers", "precision.weights=float32")  # torchao rounds them
    assert job_from_recipe(float8) == job_from_recipe(full(*words))
    (line,) = warnings_of(float8)
    said = "precision.compute: the planner uses the time and memory of bfloat16"
    assert line.startswith(said)
    assert warnings_of(full()) == ()


def test_layers_that_are_not_compiled_are_named() -> None:
    _, line = warnings_of(full("precision=fp8"))
    assert line.startswith("parallelism.compile: with none, each cast to float8")
