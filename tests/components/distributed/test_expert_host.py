"""Values that experts on CUDA read on the host: none on one rank, message sizes over ranks.

No such device is needed: fake tensors stand for those on one and raise when a value is read.
Autograd's engine asks for the device itself, so its graph is walked here.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from components.distributed.experts import AllGatherDispatcher, AllToAllDispatcher
from components.model import expert_products
from components.model.expert_products import Matrices
from components.model.mlp import ACTIVATIONS
from components.model.moe import Experts, Mixture
from tests.components.model.planted_guard import lend_guard
from tests.components.model.specs import experts_spec

RANKS, NUM_EXPERTS, TOP_K, TOKENS, DIM, FFN_DIM = 4, 8, 2, 16, 32, 24
Dispatch = Callable[[Mixture], Mixture]


class Places(TorchDispatchMode):
    """Record the devices of all tensors that operators create."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        several = made if isinstance(made, tuple | list) else [made]
        self.kinds |= {each.device.type for each in several if isinstance(each, Tensor)}
        return made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List the sizes of all host reads, which return an even load."""
    lengths: list[int] = []

    def answer(counts: Tensor, *, even: list[int]) -> list[int]:
        lengths.append(len(counts))
        return even

    monkeypatch.setattr(expert_products, "on_host", answer)
    return lengths


@pytest.fixture
def cuda() -> Iterator[None]:
    """Use fake CUDA tensors in bfloat16, the dtype of grouped products."""
    torch.set_default_dtype(torch.bfloat16)
    with lend_guard("cuda"), FakeTensorMode():
        yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def dispatches() -> Iterator[dict[str, Dispatch]]:
    """Give all dispatchers on the second of four ranks."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("expert",))
    yield {
        "one place": lambda mixture: mixture,
        "all_gather": lambda mixture: AllGatherDispatcher(mixture, mesh, overlap=1),
        "all_gather in parts": lambda mixture: AllGatherDispatcher(mixture, mesh, overlap=2),
        "all_to_all": lambda mixture: AllToAllDispatcher(mixture, mesh, overlap=1),
        "all_to_all in parts": lambda mixture: AllToAllDispatcher(mixture, mesh, overlap=2),
        "bounded": lambda mixture: AllToAllDispatcher(mixture, mesh, overlap=1, bound=1.5),
        "bounded in parts": lambda mixture: AllToAllDispatcher(
            mixture, mesh, overlap=2, bound=2
        ),
    }
    dist.destroy_process_group()


def backward(result: Tensor) -> dict[Any, Tensor]:
    """Run a backward pass as the autograd engine does; return the gradients of the leaves."""
    waiting = edges_into(result.grad_fn)
    arrived: dict[Any, dict[int, Tensor]] = {result.grad_fn: {0: torch.empty_like(result)}}
    leaves: dict[Any, Tensor] = {}
    ready: list[Any] = [result.grad_fn]
    while ready:
        node = ready.pop()
        gradients = arrived.pop(node, {})
        if hasattr(node, "variable"):
            leaves[node.variable] = gradients[0]
            continue
        given = [gradients.get(place) for place in range(max(gradients, default=-1) + 1)]
        made = node(*given) if callable(node) else node.apply(*given)
        made = made if isinstance(made, tuple) else (made,)
        assert not any(gradient is not None for gradient in made[len(node.next_functions) :])
        for (following, place), gradient in zip(node.next_functions, made, strict=False):
            if following is None:
                continue
            if gradient is not None:
                sums = arrived.setdefault(following, {})
                sums[place] = sums[place] + gradient if place in sums else gradient
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)
    return leaves


def edges_into(root: Any) -> dict[Any, int]:
    """Count the gradients that each node of a graph waits for."""
    found, reached = {root: 0}, [root]
    while reached:
        for following, _ in reached.pop().next_functions:
            if following is None:
                continue
            if following not in found:
                reached.append(following)
            found[following] = found.get(following, 0) + 1
    return found


def inputs(num_experts: int, **kind: Any) -> tuple[Tensor, Tensor, Tensor, Matrices]:
    """Make a microbatch and the experts of this rank."""
    with torch.device("cuda"):
        tokens, weights, gate, up, down = (
            torch.empty(shape, requires_grad=True, **kind)
            for shape in (
                (TOKENS, DIM),
                (TOKENS, TOP_K),
                (num_experts, FFN_DIM, DIM),
                (num_experts, FFN_DIM, DIM),
                (num_experts, DIM, FFN_DIM),
            )
        )
        chosen = torch.randint(NUM_EXPERTS, (TOKENS, TOP_K))
    return tokens, weights, chosen, Matrices(gate, up, down, ACTIVATIONS["silu"])


@pytest.mark.usefixtures("dispatches", "cuda")  # in this order: the mesh needs real tensors
@pytest.mark.parametrize(
    ("dispatch", "questions"),
    [
        ("one place", []),
        ("all_gather", [1]),
        ("all_gather in parts", [1, 1]),
        ("all_to_all", [2 * RANKS]),
        ("all_to_all in parts", [2 * 2 * RANKS]),
        ("bounded", []),
        ("bounded in parts", []),
    ],
)
def test_the_host_reads_message_sizes_in_the_forward_pass_only(
    dispatches: dict[str, Dispatch], dispatch: str, questions: list[int], reads: list[int]
) -> None:
    here = NUM_EXPERTS if dispatch == "one place" else NUM_EXPERTS // RANKS
    tokens, weights, chosen, matrices = inputs(here)
    with Places() as places:
        mixed = dispatches[dispatch](Mixture(path="auto"))(tokens, weights, chosen, matrices)
        assert reads == questions
        gradients = backward(mixed)
    assert reads == questions
    assert places.kinds == {"cuda"}
    learned: list[Any] = [tokens, weights, *matrices[:3]]
    assert set(gradients) == set(learned)
    assert all(gradients[each].shape == each.shape for each in learned)


@pytest.mark.usefixtures("cuda")
def test_a_whole_layer_with_its_router_stays_on_the_device(reads: list[int]) -> None:
    with torch.device("cuda"):
        sizes = {"num_experts": NUM_EXPERTS, "top_k": TOP_K, "ffn_dim": FFN_DIM}
        spec = experts_spec(**sizes, renormalize=True, auxiliary_loss=0.01, z_loss=0.001)
        layer = Experts(spec, dim=DIM)
        hidden = torch.randn(2, TOKENS, DIM, requires_grad=True)
    with Places() as places:
        gradients = backward(layer(hidden))
    assert reads == []
    assert places.kinds == {"cuda"}
    assert set(gradients) == {hidden, *layer.parameters()}


@pytest.mark.usefixtures("cuda")
def test_a_host_read_raises_in_this_test() -> None:
    """Without a grouped kernel for float32, experts are split by counts from the host."""
    given = inputs(NUM_EXPERTS, dtype=torch.float32)
    with pytest.raises(DataDependentOutputException):
        Mixture(path="auto")(*given)
