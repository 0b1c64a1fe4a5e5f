"""Initial values: their dependence on seed, name and layout, and their distribution."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp, kstest, truncnorm
from transformers import LlamaConfig

from components.engine.parallelize import draw_weights
from components.model.decoder import Decoder
from components.model.initialization import draw_rows
from tests.components.model.specs import mlp_spec, normal_spec, small_decoder

ROWS = 2_500  # three blocks, the last one short


@settings(max_examples=25)
@given(st.integers(0, ROWS), st.integers(0, ROWS), st.sampled_from([None, 0.7]))
def test_a_drawn_slice_equals_the_slice_of_the_whole(one, other, cutoff):
    first, last = sorted((one, other))
    name = "layers.3.mlp.up.weight"
    draw = partial(draw_rows, name, (ROWS, 3), seed=1, std=0.5, cutoff=cutoff)
    whole = draw(first_row=0, last_row=ROWS)
    assert torch.equal(draw(first_row=first, last_row=last), whole[first:last])


def test_rows_are_counted_over_all_matrices_of_a_stack() -> None:
    stack = draw_rows("w", (5, 600, 3), first_row=0, last_row=3_000, seed=1, std=1.0)
    fourth = draw_rows("w", (5, 600, 3), first_row=1_800, last_row=2_400, seed=1, std=1.0)
    assert torch.equal(stack.view(5, 600, 3)[3], fourth)


def test_values_depend_on_seed_name_and_block() -> None:
    def block(name: str, seed: int, first: int) -> torch.Tensor:
        return draw_rows(
            name, (2_048, 4), first_row=first, last_row=first + 9, seed=seed, std=1.0
        )

    start = block("a", 1, 0)
    assert torch.equal(start, block("a", 1, 0))
    for other in (block("b", 1, 0), block("a", 2, 0), block("a", 1, 1_024)):
        assert not torch.isclose(start, other).any()


def drawn(seed: int = 7, **parts: Any) -> Decoder:
    model = small_decoder(**parts)
    draw_weights(model, seed=seed)
    return model


def test_a_model_from_meta_has_the_initial_values_of_one_in_memory() -> None:
    with torch.device("meta"):
        empty = small_decoder()
    empty = empty.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in empty.parameters():
            parameter.fill_(torch.nan)
    torch.manual_seed(99)  # the global generator has no effect
    draw_weights(empty, seed=7)
    theirs = dict(empty.named_parameters())
    assert all(torch.equal(value, theirs[name]) for name, value in drawn().named_parameters())


def test_a_stage_has_the_initial_values_of_the_whole_model() -> None:
    stage = small_decoder(num_layers=3)
    del stage.layers["0"]
    stage.embedding = None
    draw_weights(stage, seed=7)
    reference = dict(drawn(num_layers=3).named_parameters())
    parts = dict(stage.named_parameters())
    assert 0 < len(parts) < len(reference)
    assert all(torch.equal(value, reference[name]) for name, value in parts.items())


def test_lower_precision_rounds_the_same_values() -> None:
    wide, narrow = drawn(), small_decoder().bfloat16()
    draw_weights(narrow, seed=7)
    for one, other in zip(wide.parameters(), narrow.parameters(), strict=True):
        assert torch.equal(one.bfloat16(), other)


@pytest.mark.parametrize(("residual", "expected"), [("scaled", 0.2 / 8**0.5), ("plain", 0.2)])
def test_only_maps_onto_the_residual_stream_are_scaled(residual, expected):
    model = drawn(
        5, dim=480, num_layers=4, num_heads=48, initialization=normal_spec(residual=residual)
    )
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
            continue
        onto_residual = name.endswith(("attention.output.weight", "mlp.down.weight"))
        std = expected if onto_residual else 0.2
        error = std / parameter.numel() ** 0.5
        assert abs(parameter.mean().item()) < 5 * error, name
        assert parameter.std().item() == pytest.approx(std, abs=5 * error), name


@pytest.mark.parametrize("cutoff", [0.5, 3.0])
def test_a_cutoff_draws_from_the_truncated_normal_distribution(cutoff: float) -> None:
    rows = partial(draw_rows, "w", (4_096, 100), first_row=0, last_row=4_096, seed=3, std=0.02)
    drawn, plain = rows(cutoff=cutoff), rows()
    law = truncnorm(-cutoff, cutoff, scale=0.02)
    assert drawn.abs().max().item() <= float(torch.tensor(cutoff * 0.02))
    assert drawn.abs().max().item() > 0.99 * cutoff * 0.02
    assert drawn.std().item() == pytest.approx(law.std(), rel=0.005)
    assert kstest(drawn.flatten().double().numpy(), law.cdf).pvalue > 0.01
    theirs = torch.nn.init.trunc_normal_(
        torch.empty(4_096, 100),
        std=0.02,
        a=-0.02 * cutoff,
        b=0.02 * cutoff,
        generator=torch.Generator().manual_seed(3),
    )
    assert ks_2samp(drawn.flatten().numpy(), theirs.flatten().numpy()).pvalue > 0.01
    within = plain.abs() <= cutoff * 0.02
    assert torch.equal(drawn[within], plain[within])


def test_the_cutoff_is_relative_to_the_deviation_of_each_map() -> None:
    model = drawn(
        5, dim=240, num_layers=4, num_heads=24, initialization=normal_spec(cutoff=2.0)
    )
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            onto = name.endswith(("attention.output.weight", "mlp.down.weight"))
            bound = 2 * (0.2 / 8**0.5 if onto else 0.2)
            assert 0.9 * bound < parameter.abs().max().item() <= bound * (1 + 1e-6), name


def test_fan_in_has_the_default_initializer_range_of_transformers() -> None:
    assert normal_spec("fan_in", "zero").initializer_range == LlamaConfig().initializer_range
    assert normal_spec(0.01, "zero").initializer_range == 0.01


def test_initial_deviations_follow_the_fan_in_or_are_zero() -> None:
    wide = {"dim": 240, "num_heads": 24, "mlp": mlp_spec(1_024, "relu_squared")}
    spec = normal_spec("fan_in", "zero", embedding_std=1.0, head_std=0.0)
    model = drawn(5, **wide, initialization=spec)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            continue
        if name.startswith("head") or name.endswith(("output.weight", "down.weight")):
            assert not parameter.any(), name
            continue
        outputs, inputs = parameter.shape  # nanochat/gpt.py, _init_weights
        std = 1.0 / inputs**0.5 * min(1.0, (outputs / inputs) ** 0.5)
        std = 1.0 if name == "embedding.weight" else std
        error = std / parameter.numel() ** 0.5
        assert parameter.std().item() == pytest.approx(std, abs=5 * error), name
    model = drawn(5, **wide, initialization=normal_spec("fan_in", "plain"))
    down = model.get_parameter("layers.0.mlp.down.weight")
    narrower = (240 / 1_024) ** 0.5 / 1_024**0.5
    assert down.std().item() == pytest.approx(narrower, rel=0.01)


def test_biases_start_at_zero() -> None:
    model = drawn(mlp=mlp_spec(6, "gelu", bias=True))
    biases = [one for name, one in model.named_parameters() if name.endswith("bias")]
    assert len(biases) == 2 * model.num_layers
    assert not any(one.any() for one in biases)


def test_scalars_of_an_activation_start_at_their_constants() -> None:
    model = small_decoder(mlp=mlp_spec(8, "xielu"))
    starts = {name: one.clone() for name, one in model.named_parameters() if "alpha" in name}
    assert len(starts) == 2 * model.num_layers
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    draw_weights(model, seed=7)
    parameters = dict(model.named_parameters())
    assert all(torch.equal(parameters[name], start) for name, start in starts.items())


def test_the_padding_row_alone_starts_at_zero() -> None:
    plain, padded = drawn(), drawn(initialization=normal_spec(padding_row=5))
    assert plain.embedding is not None
    assert padded.embedding is not None
    ours, expected = padded.embedding.weight, plain.embedding.weight.detach().clone()
    expected[5] = 0.0
    assert torch.equal(ours, expected)
