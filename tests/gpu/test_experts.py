"""A layer of experts on one GPU mixes what double precision mixes on the host."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.device_mesh import init_device_mesh

from components.config.model_spec.feed_forward import ExpertsSpec
from components.distributed.compile import compile_layers
from components.distributed.experts import AllToAllDispatcher
from components.model.expert_products import Matrices, has_grouped_kernel
from components.model.mlp import ACTIVATIONS
from components.model.moe import Experts, Mixture

DIM, FFN_DIM, NUM_EXPERTS, TOP_K, TOKENS = 256, 128, 16, 4, 1_024
# Of the largest element: 8 bits, and sums of a few hundred products in float32.
TOLERANCES = {torch.bfloat16: 2e-2, torch.float32: 1e-5}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # the compiler warns of its own imports
]


class Layers(nn.Module):
    """One layer of experts, where a decoder has its layers."""

    def __init__(self, experts: Experts) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"0": experts})

    def forward(self, hidden: Tensor) -> Tensor:
        mixed: Tensor = self.layers["0"](hidden)
        return mixed


def layers_of(dtype: torch.dtype) -> Layers:
    torch.manual_seed(0)
    experts = Experts(
        ExpertsSpec(
            num_experts=NUM_EXPERTS,
            top_k=TOP_K,
            ffn_dim=FFN_DIM,
            activation="silu",
            gated=True,
            renormalize=True,
            routing="learned",
            auxiliary_loss=0.01,
            auxiliary_scope="model",
            z_loss=0.001,
            path="auto",
        ),
        dim=DIM,
    )
    with torch.no_grad():
        experts.router.weight.copy_(torch.eye(NUM_EXPERTS, DIM))
    return Layers(experts.to(dtype))


def tokens_for(experts: range, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Draw tokens for these experts, further apart than bfloat16 rounds, and a gradient."""
    hidden = torch.randn(1, TOKENS, DIM)
    ranks = torch.rand(TOKENS, len(experts)).argsort(1)
    hidden[..., :NUM_EXPERTS] = -8.0
    hidden[..., experts.start : experts.stop] = ranks / 4
    return hidden.to(dtype), torch.randn(1, TOKENS, DIM).to(dtype)


def mixed_and_gradients(model: Layers, hidden: Tensor, upstream: Tensor) -> list[Tensor]:
    hidden = hidden.clone().requires_grad_()
    mixed = model(hidden)
    return [mixed, *torch.autograd.grad(mixed, [hidden, *model.parameters()], upstream)]


@pytest.mark.parametrize("parts", ["none", "layers"], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
def test_a_gpu_mixes_what_the_host_mixes_in_double_precision(gpu, dtype, parts):
    torch._dynamo.reset()
    exact = layers_of(dtype)
    model = copy.deepcopy(exact).to(gpu)
    exact.double()
    compile_layers(model, "layers" if parts == "layers" else "none", recompute="none")
    for experts in (range(NUM_EXPERTS), range(3, 3 + TOP_K)):  # all of them, and a few
        given = tokens_for(experts, dtype)
        found = mixed_and_gradients(model, *(each.to(gpu) for each in given))
        expected = mixed_and_gradients(exact, *(each.double() for each in given))
        for one, other in zip(found, expected, strict=True):
            assert one.device.type == gpu
            gap = (one.cpu().double() - other).abs().max()
            assert gap <= TOLERANCES[dtype] * other.abs().max()


def test_grouped_products_on_a_gpu_wait_for_no_counts(gpu: str) -> None:
    module = torch.get_device_module(gpu)
    if not has_grouped_kernel(gpu) or not hasattr(module, "set_sync_debug_mode"):
        pytest.skip("needs grouped products, and a device module that records waits")
    model = layers_of(torch.bfloat16).to(gpu)
    hidden, upstream = (each.to(gpu) for each in tokens_for(range(NUM_EXPERTS), torch.bfloat16))
    mixed_and_gradients(model, hidden, upstream)  # what is set up once may wait
    module.set_sync_debug_mode("error")
    try:
        mixed_and_gradients(model, hidden, upstream)
    finally:
        module.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
def test_rows_that_pad_a_bounded_exchange_change_nothing_on_a_gpu(gpu, dtype):
    """They have the number after the last expert, come last, and their results are not read."""
    given = torch.randn(TOKENS, DIM), torch.rand(TOKENS, 1)
    stacks = [torch.randn(NUM_EXPERTS, FFN_DIM, DIM) / 16 for _ in range(2)]
    stacks.append(torch.randn(NUM_EXPERTS, DIM, FFN_DIM) / 16)
    experts = torch.randint(NUM_EXPERTS + 1, (TOKENS, 1))
    real = (experts < NUM_EXPERTS).flatten()
    found = []
    for device, kind, padded in ((gpu, dtype, True), ("cpu", torch.float64, False)):
        kept = real | padded
        tensors = [*(each[kept] for each in given), *stacks]
        learned = [x.to(dtype).to(device, kind).requires_grad_() for x in tensors]
        tokens, weights, gate, up, down = learned
        matrices = Matrices(gate, up, down, ACTIVATIONS["silu"])
        mixed = Mixture(path="auto")(tokens, weights, experts[kept].to(device), matrices)
        rows = mixed[real[kept].to(device)]
        found.append([rows, *torch.autograd.grad(rows.sum(), learned[2:])])
    for one, other in zip(*found, strict=True):
        gap = (one.cpu().double() - other).abs().max()
        assert gap <= TOLERANCES[dtype] * other.abs().max()


def test_a_bounded_exchange_on_a_gpu_waits_for_no_sizes(gpu: str) -> None:
    module = torch.get_device_module(gpu)
    if not has_grouped_kernel(gpu) or not hasattr(module, "set_sync_debug_mode"):
        pytest.skip("needs grouped products, and a device module that records waits")
    model = layers_of(torch.bfloat16).to(gpu)
    hidden, upstream = (each.to(gpu) for each in tokens_for(range(NUM_EXPERTS), torch.bfloat16))
    expected = mixed_and_gradients(model, hidden, upstream)
    dist.init_process_group(
        device_id=torch.device(gpu, 0), store=HashStore(), rank=0, world_size=1
    )
    try:
        mesh = init_device_mesh(gpu, (1,), mesh_dim_names=("expert",))
        experts = next(module for module in model.modules() if isinstance(module, Experts))
        experts.mixture = AllToAllDispatcher(experts.mixture, mesh, overlap=2, bound=1.0)
        mixed_and_gradients(model, hidden, upstream)  # connections are made
        module.set_sync_debug_mode("error")
        found = mixed_and_gradients(model, hidden, upstream)
    finally:
        module.set_sync_debug_mode("default")
        dist.destroy_process_group()
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= TOLERANCES[torch.bfloat16] * other.abs().max()
