"""Linear maps in float8 against handwritten rounding, and unchanged parts."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from components.build import build_node
from components.engine.parallelize import draw_weights
from components.errors import RecipeError
from components.model import float8
from components.model.decoder import Decoder
from components.model.float8 import check_torchao, float8_layers
from components.model.linear import ResidualLinear
from tests.recipes.compositions import compose

LARGEST = 448.0  # of e4m3: 1.75 x 2**8
TOKENS, INPUTS, OUTPUTS = 24, 64, 48

pytestmark = pytest.mark.filterwarnings(  # from torch's import of Triton
    "ignore:.torch.jit.script_method."
)


class Model(nn.Module):
    """One layer of one linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"0": nn.Sequential(nn.Linear(INPUTS, OUTPUTS))})


def rounded(values: Tensor, dim: int | None) -> Tensor:
    """Round to e4m3 with a power of two as scale, per row or for all values."""
    wide = values.double().abs()
    largest = wide.max() if dim is None else wide.amax(dim, keepdim=True)
    scale = 2.0 ** torch.floor(torch.log2(LARGEST / largest))
    return nearest_e4m3(values.double() * scale) / scale


def nearest_e4m3(values: Tensor) -> Tensor:
    """Round to 3 mantissa bits, half to even; below 2**-6 in steps of 2**-9."""
    exponent = torch.floor(torch.log2(values.abs().clamp(min=1e-300))).clamp(min=-6)
    step = 2.0 ** (exponent - 3)
    return torch.round(values / step) * step


@pytest.fixture
def drawn() -> tuple[Model, Tensor, Tensor]:
    """Draw rows of very different sizes, so that scales matter."""
    torch.manual_seed(5)
    model = Model()
    sizes = torch.logspace(-3, 3, TOKENS)[:, None]
    inputs = (torch.randn(TOKENS, INPUTS) * sizes).bfloat16().requires_grad_()
    upstream = (torch.randn(TOKENS, OUTPUTS) / sizes).bfloat16()
    return model, inputs, upstream


def passed(model: Model, inputs: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output and the gradients of inputs and weight."""
    inputs.grad = None
    model.zero_grad()
    with torch.autocast(inputs.device.type, torch.bfloat16, cache_enabled=False):
        output = model.layers["0"](inputs)
    output.backward(upstream)
    weight = next(model.parameters())
    assert inputs.grad is not None
    assert weight.grad is not None
    return output.detach(), inputs.grad, weight.grad.clone()


def test_output_and_gradients_equal_products_of_rounded_operands(drawn):
    model, inputs, upstream = drawn
    weight, bias = (one.detach().double() for one in model.parameters())
    float8_layers(model, emulates=True)
    output, gradient, weight_gradient = passed(model, inputs, upstream)
    by_hand = rounded(inputs.detach(), 1) @ rounded(weight, 1).T
    # Sums in float32 and float64 may round to adjacent bfloat16 numbers.
    exact = by_hand.bfloat16().double() + bias.bfloat16()
    torch.testing.assert_close(output.double(), exact, rtol=2**-7, atol=2**-7)
    by_hand = rounded(upstream, 1) @ rounded(weight, None)
    torch.testing.assert_close(gradient.double(), by_hand, rtol=2**-7, atol=1e-6)
    by_hand = upstream.double().T @ inputs.detach().double()
    torch.testing.assert_close(weight_gradient.double(), by_hand, rtol=2**-7, atol=2**-5)


def test_the_reference_rounds_as_torch_casts() -> None:
    values = torch.cat([torch.linspace(-LARGEST, LARGEST, 4_001), torch.randn(4_000) / 100])
    cast = values.to(torch.float8_e4m3fn).double()
    assert torch.equal(nearest_e4m3(values.double()), cast)


def test_tokens_are_scaled_independently(drawn):
    model, inputs, upstream = drawn
    float8_layers(model, emulates=True)
    output, gradient, _ = passed(model, inputs, upstream)
    for rows in (slice(0, 1), slice(5, 17)):
        part = inputs.detach()[rows].requires_grad_()
        alone = passed(model, part, upstream[rows])
        assert torch.equal(alone[0], output[rows])
        assert torch.equal(alone[1], gradient[rows])


def decoder(name: str) -> Decoder:
    recipe = compose(name, "scale=mini", "model.num_layers=2", "precision=fp8")
    built = build_node(recipe.model, "model")
    assert isinstance(built, Decoder)
    return built


@pytest.mark.parametrize("name", ["teuken7b", "bloom560m", "mula7b_a1b"])
def test_layers_change_their_products_and_nothing_else(name: str) -> None:
    plain = decoder(name)
    changed = copy.deepcopy(plain)
    float8_layers(changed, emulates=True)
    for model in (plain, changed):
        draw_weights(model, seed=3)
    before, after = dict(plain.named_parameters()), dict(changed.named_parameters())
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
    others = {
        key
        for key, part in changed.named_modules()
        if isinstance(part, nn.Linear) and type(part).__name__ != "Float8Linear"
    }
    kept = {"head"} | {key for key in others if key.endswith(".mlp.router")}
    assert others <= kept
    assert len([key for key in others if "router" in key]) == (2 if "mula" in name else 0)
    assert not any(type(part) is ResidualLinear for part in changed.modules())


def test_a_missing_torchao_is_refused_with_the_command_to_install_it(monkeypatch):
    monkeypatch.setattr(float8, "find_spec", lambda name: None)
    message = (
        r"precision\.compute: float8, for which torchao is not installed here\n"
        r"  pip install --no-deps -r requirements/fp8\.lock, or set precision\.compute=bfloat16"
    )
    with pytest.raises(RecipeError, match=message):
        check_torchao()
    with pytest.raises(RecipeError, match=message):
        float8_layers(Model(), emulates=True)


@pytest.mark.long
def test_the_import_prints_nothing() -> None:
    program = (
        "from components.model.float8 import float8_layers\n"
        "from tests.components.model.test_float8 import Model\n"
        "float8_layers(Model(), emulates=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
