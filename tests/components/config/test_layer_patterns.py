"""Patterns of layers in recipes: rules, counts, miniatures, stages and plans."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.config.fingerprint import compute_fingerprint
from components.config.key_groups import KeyGroup, split_by_group
from components.config.recipe import Recipe
from components.config.stages import stage_layers
from components.errors import RecipeError
from components.planner.job import job_from_recipe
from components.planner.states import rank_parameters
from tests.components.config.helpers import refusals, split_words
from tests.components.config.own_recipe import compose_own
from tests.recipes.compositions import compose

NORM = (
    "norm: {_target_: components.model.norms.Norm, _partial_: true, eps: 1.0e-5, "
    "center: false, weight: true, bias: false}"
)
SIZES = f"_partial_: true, key_dim: 96, value_dim: 192, conv_size: 4, {NORM}"
DELTA = (
    "delta: {_target_: components.model.mixers.gated_delta_net.GatedDeltaNet, "
    f"num_heads: 16, {SIZES}}}"
)
MAMBA = (
    "mamba: {_target_: components.model.mixers.mamba2.Mamba2, num_heads: 16, "
    f"num_key_heads: 4, conv_bias: true, {SIZES}}}"
)
WORDS = (
    "model.pattern=delta/mlp|delta/mlp|delta/mlp|attention/mlp",
    f"model.mixers={{{DELTA}}}",
)


def build(*words: str, scale: str = "parity") -> Recipe:
    given = {word.partition("=")[0] for word in words}
    others = [word for word in WORDS if word.partition("=")[0] not in given]
    return compose("olmo2_1b", *others, f"scale={scale}", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    refusals(
        r"""
model.pattern=delta/mlps
    pattern: 'delta/mlps' has an unknown part 'mlps'
model.pattern=[]
    pattern: the pattern has 0 layers, but the model has 4
model.pattern=delta+delta/mlp
    'delta\+delta/mlp' has mixer, mixer, mlp
    use .* in this order, each at most
model.pattern=mlp/delta
    pattern: 'mlp/delta' has mlp, mixer
model.pattern=[attention/mlp]
    mixers\.delta: no layer of the pattern uses delta
model.pattern=null
    mixers\.delta: no layer of the pattern uses delta
model.mixers.delta.num_key_heads=3
    num_key_heads: 3 does not divide
model.mixers.delta.decay_range=[3, 3]
    decay_range: \[3, 3\] is empty
model.mixers.delta.scan_backends=[]
    mixers\.delta\.scan_backends: the list is empty
    .* fla, mamba_ssm, torch
model.mixers.delta.scan_backends=[fla, fla]
    mixers\.delta\.scan_backends: fla is listed twice
    list each backend once
model.mixers.delta.scan_backends=[fla, triton]
    scan_backends\.1: input should be .*'torch', got 'triton'
model.mixers.delta.scan_backends=[mamba_ssm] cluster.device=cuda
    model\.mixers\.delta\.scan_backends: \[mamba_ssm\] has no kernel for bfloat16 \
    GatedDeltaNet, keys of \d+, on cuda
    add torch
model.mixers.delta.norm.bias=true
    delta\.norm\.bias: true, but a norm without
model.mtp={_target_: components.model.mtp.MultiTokenPrediction, _partial_: true, loss_weight: \
  0.3, depth: 1}
    model\.mtp: multi-token prediction is not supported with a pattern
precision=fp8
    precision\.compute: float8, but the maps of linear mixers
model.parametrization={_target_: components.model.parametrization.MuP, _partial_: true, \
  base_dim: 64} model.norm_placement=before
    model\.pattern: model\.parametrization supports only attention and an MLP
parallelism.tensor=8 model.mixers.delta.num_key_heads=4
    tensor: 8 does not divide model\.mixers\.delta\.num_key_heads 4
parallelism.context=8 model.mixers.delta.conv_size=6
    conv_size: 6 is more than the tokens of a context rank's chunk, plus 1 = 3
model.mixers={mlp: $DELTA model.pattern=[mlp]
    mixers: 'mlp' cannot name a mixer
model.mixers={$MAMBA} model.pattern=mamba model.mixers.mamba.norm.center=true
    norm\.center: true, but Mamba2 divides each group by its root mean square
""",
        DELTA=f"{DELTA[7:]}}}",
        MAMBA=MAMBA,
    ),
)
def test_invalid_patterns_are_refused(words: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build(*split_words(words))


def test_the_order_of_scan_backends_is_layout() -> None:
    plain = build("cluster.device=cuda")
    other = build("cluster.device=cuda", "model.mixers.delta.scan_backends=[fla,torch]")
    assert plain.decoder_spec.mixers["delta"].scan_backends == ("torch",)
    assert other.decoder_spec.mixers["delta"].scan_backends == ("fla", "torch")
    assert compute_fingerprint(plain) == compute_fingerprint(other)
    layout = split_by_group(other.model_dump(mode="json"))[KeyGroup.LAYOUT]
    assert layout["model.mixers.delta.scan_backends"] == ["fla", "torch"]


def test_a_miniature_keeps_the_pattern_and_the_shape_of_mixers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("All work and no play makes a dull text. " * 20_000)
    norm = {"_target_": "components.model.norms.Norm", "_partial_": True, "eps": 1e-5}
    norm |= {"center": False, "weight": True, "bias": False}
    mixer = {"_target_": "components.model.mixers.mamba2.Mamba2", "_partial_": True}
    mixer |= {"num_heads": 32, "num_key_heads": 4, "key_dim": 128, "value_dim": 64}
    mixer |= {"conv_size": 4, "conv_bias": True, "norm": norm}
    pattern = ["mamba", "mlp", "mamba", "mlp", "mamba", "attention", "mlp", "mamba"]
    changes: dict[str, Any] = {"model.dim": 1_024, "model.num_layers": 16}
    changes |= {"model.attention.num_heads": 8, "model.attention.head_dim": 128}
    changes |= {"model.pattern": pattern, "model.mixers": {"mamba": mixer}}
    full, mini = (compose_own(changes, f"scale={scale}") for scale in ("full", "parity"))
    assert full.model["pattern"] == tuple(pattern)
    assert mini.model["pattern"] == ("mamba", "mamba", "mlp", "attention")
    small = mini.decoder_spec.mixers["mamba"]
    assert (small.key_dim, small.value_dim) == (8, 4)  # an attention head has 8 of 128 channels
    assert small.num_heads * small.value_dim == 2 * 64  # twice the width, as before
    assert (small.num_heads, small.num_key_heads) == (32, 4)


def test_flops_count_states_and_the_keys_of_attention_layers_only() -> None:
    recipe = build(scale="full")
    shape, length = recipe.decoder_spec, recipe.budget.sequence_length
    flops = recipe.derived_numbers.flops_per_token
    delta, layers = shape.mixers["delta"], shape.num_layers
    states = 6 * 3 * 16 * 96 * 192 * (3 * layers // 4)
    keys = 12 * 2_048 * length * (layers // 4)
    weights = 6 * (shape.total_parameters - shape.embedding_parameters // 2)
    assert flops.full == weights + states + keys
    assert flops.causal == weights + states + keys // 2
    assert delta.count_parameters(2_048) == shape.shape_of(0).mixing_parameters


def test_stages_are_balanced_by_cost() -> None:
    costs = (1, 1, 1, 5, 1, 1, 1, 5)
    assert stage_layers(8, 2, "layers", costs) == (range(4), range(4, 8))
    assert stage_layers(8, 3, "layers", costs) == (range(3), range(3, 6), range(6, 8))
    single = (range(1), range(1, 2), range(2, 3))
    assert stage_layers(3, 3, "layers_and_ends", (1, 9, 1)) == single
    recipe = build("parallelism.pipeline=2")
    assert sum(map(len, recipe.stage_layers)) == 4


def test_planned_parameters_sum_over_stages_and_tensor_ranks() -> None:
    recipe = build("parallelism.pipeline=2", "parallelism.tensor=2", "model.num_layers=5")
    job, shape = job_from_recipe(recipe), recipe.decoder_spec
    whole = shape.over_layers(lambda layer: layer.whole_parameters)
    counted = sum(2 * rank_parameters(job, rank).dense for rank in range(2))
    total = shape.total_parameters + shape.padding_parameters - shape.norm.count_parameters(64)
    assert counted == total + whole


def test_recipes_without_a_pattern_have_no_new_keys() -> None:
    recipe = compose("olmo2_1b")
    assert not {"pattern", "mixers"} & recipe.model.keys()
    assert "pattern" not in json.dumps(recipe.model_dump(mode="json")["model"])
