"""The residual stream under autocast is bfloat16 and as exact as a reference."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from components.config.model_spec.norms import NormSpec
from components.model.norms import Norm
from tests.components.model.comparison import randomized, saved_bytes
from tests.components.model.mappings import to_llama
from tests.components.model.specs import LAYER_NORM, normal_spec, small_decoder
from tests.components.model.test_decoder import llama_like


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("center", [True, False])
def test_a_norm_of_bfloat16_equals_the_rounded_norm_of_float32(center: bool) -> None:
    norm = Norm(NormSpec(eps=1e-5, center=center, weight=True, bias=center), dim=64)
    for values in norm.parameters():
        nn.init.normal_(values, 1.0)
    hidden = torch.randn(50, 64).bfloat16()
    wide = hidden.float()
    weight, *bias = [values.bfloat16().float() for values in norm.parameters()]
    if center:
        expected = F.layer_norm(wide, (64,), weight, bias[0], 1e-5)
    else:
        expected = F.rms_norm(wide, (64,), weight, 1e-5)
    with autocast():
        found = norm(hidden)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=2**-7, atol=2**-7)


def test_hidden_states_are_bfloat16_and_the_loss_is_float32() -> None:
    model = randomized(small_decoder())
    passed: list[Tensor] = []
    for layer in model.layers.values():
        layer.register_forward_hook(lambda _, given, result: passed.extend([given[0], result]))
    tokens = torch.randint(61, (2, 9))
    with autocast():
        loss = model.compute_loss(tokens, tokens)
    assert {tensor.dtype for tensor in passed} == {torch.bfloat16}
    assert loss.dtype == torch.float32
    torch.autograd.backward(loss)
    assert all(weight.grad is not None for weight in model.parameters())


def test_logits_are_as_exact_as_the_logits_of_a_bfloat16_llama() -> None:
    model = randomized(small_decoder(num_layers=8, initialization=normal_spec(0.05)))
    llama = llama_like(model)
    llama.load_state_dict(to_llama(model.state_dict()), strict=False)
    tokens = torch.randint(61, (4, 37))
    exact = copy.deepcopy(model).double()(tokens)
    with autocast():
        ours = model(tokens)
    theirs = llama.bfloat16()(tokens).logits
    errors = [(logits.double() - exact).norm() for logits in (ours, theirs)]
    assert 0 < errors[0] < 1.1 * errors[1] < 0.1 * exact.norm()


def test_activations_of_bfloat16_take_about_half_the_bytes() -> None:
    # A CPU has a fused kernel for LayerNorm but not for RMSNorm.
    model = randomized(small_decoder(num_layers=4, norm=LAYER_NORM))
    tokens = torch.randint(61, (4, 64))
    wide = saved_bytes(model, lambda: model.compute_loss(tokens, tokens))
    with autocast():
        narrow = saved_bytes(model, lambda: model.compute_loss(tokens, tokens))
    assert narrow < 0.65 * wide  # casts of weights are saved too
