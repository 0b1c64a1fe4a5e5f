"""Layers of a pattern: parts, names, counts, documents and initial values."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.positions import OrderSpec, RotarySpec
from components.engine.parallelize import draw_weights
from components.model.decoder import Decoder
from components.optim.muon import is_hidden_matrix
from tests.components.model.comparison import randomized
from tests.components.model.mixers.builders import (
    NORM,
    build_scope,
    delta_spec,
    kimi_spec,
    mamba_spec,
)
from tests.components.model.specs import decoder_spec, experts_spec, mlp_spec

LENGTH = 21
MIXERS: dict[str, Any] = {"delta": delta_spec(norm_placement="before"), "kimi": kimi_spec()}
MIXERS |= {"mamba": mamba_spec()}
EXPERTS = experts_spec(ffn_dim=10, renormalize=True, path="loop", shared_ffn_dim=6)
MODELS: dict[str, dict[str, Any]] = {
    "Nemotron-H": {"pattern": "mamba|mlp|mamba|attention|mlp", "num_layers": 5},
    "Falcon-H1": {"pattern": "attention+mamba/mlp"},
    "Qwen3-Next": {
        "pattern": "delta/mlp|attention/mlp",
        "mlp": EXPERTS.model_copy(update={"shared_gate": True}),
    },
    "OLMo-Hybrid": {
        "pattern": ["delta/mlp", "delta/mlp", "delta/mlp", "attention/mlp"],
        "norm_placement": "after",
    },
    "Kimi": {
        "pattern": "kimi/mlp|attention/mlp",
        "mlp": EXPERTS,
        "dense_mlp": mlp_spec(20),
        "norm_placement": "both",
    },
}


def build_spec(**changes: Any) -> DecoderSpec:
    settings: dict[str, Any] = {"dim": 24, "num_layers": 4, "padded_vocab_size": 64}
    settings |= {"tied_embeddings": False, "positions": RotarySpec(base=100.0)}
    settings |= {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "qk_norm": NORM}
    settings |= {"mlp": mlp_spec(30), "norm": NORM}
    pattern = changes.get("pattern") or ""
    names = pattern if isinstance(pattern, str) else "".join(pattern)
    mixers = {name: m for name, m in MIXERS.items() if name in names}
    return decoder_spec(**settings | {"mixers": mixers} | changes)


models = pytest.mark.parametrize("name", list(MODELS))


@models
def test_counts_equal_built_model(name: str) -> None:
    spec = build_spec(**MODELS[name])
    with torch.device("meta"):
        named = dict(Decoder(spec).named_parameters())
    count = sum(weight.numel() for weight in named.values())
    assert count == spec.total_parameters + spec.padding_parameters
    routers = sum(weight.numel() for key, weight in named.items() if "router" in key)
    matrices = (
        weight.numel() for key, weight in named.items() if is_hidden_matrix(key, weight)
    )
    counted = spec.over_layers(lambda layer: layer.layer_matrices)
    assert sum(matrices) == counted
    assert (routers > 0) == ("mlp" in MODELS[name])


def test_pattern_of_plain_layers_changes_nothing() -> None:
    plain, named = (
        randomized(Decoder(build_spec(pattern=pattern))) for pattern in (None, "attention/mlp")
    )
    assert list(plain.state_dict()) == list(named.state_dict())
    tokens = torch.randint(61, (2, LENGTH))
    assert torch.equal(plain(tokens), named(tokens))


@models
def test_states_are_reset_between_documents(name: str) -> None:
    spec = build_spec(**MODELS[name], positions=OrderSpec())  # RoPE computes in float32
    model = randomized(Decoder(spec)).double()
    tokens = torch.randint(61, (2, LENGTH))
    ends = 5, 12, LENGTH
    documents = torch.zeros(2, LENGTH, dtype=torch.long)
    documents[:, 5:] += 1
    documents[:, 12:] += 1
    packed = model(tokens, documents=documents)
    starts = (0, *ends)
    for start, end in zip(starts, ends, strict=False):
        alone = model(tokens[:, start:end])
        torch.testing.assert_close(packed[:, start:end], alone, rtol=1e-9, atol=1e-9)


def test_parallel_parts_read_the_same_norm() -> None:
    model = randomized(Decoder(build_spec(pattern="attention+mamba/mlp", num_layers=1)))
    layer: Any = model.layers["0"]
    assert {name for name, _ in layer.named_children()} == {
        *("attention_norm", "attention", "mixer", "mlp_norm", "mlp", "dropout")
    }
    inputs, outputs = {}, {}
    for name in ("attention", "mixer", "mlp_norm"):

        def keep(_: Any, given: Any, output: Tensor, name: str = name) -> None:
            inputs[name], outputs[name] = given[0], output

        getattr(layer, name).register_forward_hook(keep)
    hidden = torch.randn(1, LENGTH, 24)
    layer(hidden, build_scope(length=LENGTH))
    assert inputs["attention"] is inputs["mixer"]
    expected = hidden + outputs["attention"] + outputs["mixer"]
    torch.testing.assert_close(inputs["mlp_norm"], expected)


def test_a_mixer_may_place_its_norm_before_its_branch() -> None:
    model = randomized(Decoder(build_spec(**MODELS["OLMo-Hybrid"])))
    hidden = torch.randn(1, LENGTH, 24)
    scope = build_scope(length=LENGTH)
    for index, before in (("0", True), ("3", False)):
        layer: Any = model.layers[index]
        mix = layer.mixer if before else layer.attention
        norm = layer.mixer_norm if before else layer.attention_norm
        first = mix(norm(hidden), scope) if before else norm(mix(hidden, scope))
        middle = hidden + first
        mlp_norm, mlp = layer.mlp_norm, layer.mlp
        last = mlp(mlp_norm(middle)) if before else mlp_norm(mlp(middle))
        torch.testing.assert_close(layer(hidden, scope), middle + last)


def test_initial_values_are_in_range_and_depend_on_the_seed() -> None:
    mixers = {
        "delta": delta_spec(num_heads=400, decay_range=(2.0, 3.0), step_range=(0.01, 0.1)),
        "mamba": mamba_spec(),
    }
    spec = build_spec(pattern="delta/mlp|mamba", mixers=mixers)
    first, other = Decoder(spec), Decoder(spec)
    draw_weights(first, seed=1)
    draw_weights(other, seed=2)
    drawn, others = dict[str, Any](first.layers), dict[str, Any](other.layers)
    mixer = drawn["0"].mixer
    decays = mixer.log_decay.exp()
    steps = torch.nn.functional.softplus(mixer.step_bias)
    assert ((decays > 2) & (decays < 3)).all()
    assert decays.mean().item() == pytest.approx(2.5, abs=0.1)
    assert ((steps > 0.0099) & (steps < 0.101)).all()
    assert steps.log().mean().item() == pytest.approx(math.log(math.sqrt(1e-3)), abs=0.2)
    assert not torch.equal(mixer.log_decay, others["0"].mixer.log_decay)
    assert not torch.equal(mixer.log_decay, drawn["2"].mixer.log_decay)
    mamba = drawn["1"].mixer
    assert (mamba.skip == 1).all()
    assert mamba.value_conv.taps.std().item() == pytest.approx(1 / math.sqrt(12), rel=0.2)
    assert mamba.value_conv.bias.abs().max() == 0
    assert mixer.norm.weight.eq(1).all()


def test_scaled_initialization_counts_the_branches() -> None:
    model = Decoder(build_spec(**MODELS["Nemotron-H"]))
    assert model.num_branches == 5
    draw_weights(model, seed=0)
    layer: Any = model.layers["1"]
    deviation = layer.mlp.down.weight.std().item()
    assert deviation == pytest.approx(0.2 / math.sqrt(5), rel=0.1)
