"""Products in float8 on a GPU, beside those that the CPU emulates and those in bfloat16."""

import pytest
import torch

from components.model.float8 import float8_layers
from tests.components.model.test_float8 import Model, passed
from tests.gpu.test_one_gpu import BFLOAT16_TOLERANCE, losses
from tests.life.conftest import TINY

# An emulated sum is of float32; tensor cores may add in fewer bits, and results are bfloat16.
PRODUCT_TOLERANCE = 2**-6

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings(  # torch's own import of Triton's compiler
        "ignore:.torch.jit.script_method."
    ),
    # Its compiler reads it of the weights that are cast (seen with torch 2.11).
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]


@pytest.fixture
def float8_gpu(gpu: str) -> str:
    """Name the GPU if it has such products."""
    if gpu != "cuda" or torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU with products in float8")
    return gpu


def test_a_linear_map_finds_what_is_emulated(float8_gpu: str) -> None:
    torch.manual_seed(5)
    emulated, real = Model(), Model()
    real.load_state_dict(emulated.state_dict())
    inputs, upstream = torch.randn(2, 32, 64).bfloat16(), torch.randn(2, 32, 48).bfloat16()
    float8_layers(emulated, emulates=True)
    float8_layers(real, emulates=False)
    expected = passed(emulated, inputs.clone().requires_grad_(), upstream)
    there = inputs.to(float8_gpu).requires_grad_()
    found = passed(real.to(float8_gpu), there, upstream.to(float8_gpu))
    for one, other in zip(found, expected, strict=True):
        far = (one.cpu().double() - other.double()).norm() / other.double().norm()
        assert far < PRODUCT_TOLERANCE


@pytest.mark.parametrize("compiles", ["none", "layers"])
def test_a_run_finds_the_losses_that_the_cpu_emulates(home, program, float8_gpu, compiles):
    run = home / f"gpu-{compiles}"
    words = (*TINY, "precision=fp8", f"parallelism.compile={compiles}")
    program(*words, f"cluster.device={float8_gpu}", f"run={run}")
    program(*TINY, "precision=fp8", "cluster.device=cpu", f"run={run}-emulated")
    emulated = losses(run.with_name(f"{run.name}-emulated"))
    assert losses(run) == pytest.approx(emulated, rel=BFLOAT16_TOLERANCE)
