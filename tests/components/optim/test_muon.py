"""Muon against torch's own, singular values against an SVD, and the weights of each rule."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from components.optim.adamw import AdamW
from components.optim.muon import Muon, is_hidden_matrix, orthogonalize_matrices, update_factor

ADAMW: dict[str, Any] = {"lr": 0.02, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
ADAMW |= {"weight_decay": 0.1, "decay": "matrices", "decay_order": "before"}
ADAMW |= {"clip_norm": 1.0, "clip_after_tokens": 0}
SETTINGS: dict[str, Any] = {
    "matrix_lr_factor": 1.0,
    "embedding_lr_factor": 1.0,
    "head_lr_factor": 1.0,
}
SETTINGS |= {"momentum": 0.95, "nesterov": True, "newton_schulz_steps": 5}
SETTINGS |= {"update_scale": "match_rms_adamw", **ADAMW}
NAME = "layers.0.mlp.up.weight"


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def muon(parameters: dict[str, nn.Parameter], **changed: Any) -> Muon:
    return Muon(parameters=list(parameters.items()), **SETTINGS | changed)


def step(optimizer: torch.optim.Optimizer, gradients: dict[nn.Parameter, Tensor]) -> None:
    for parameter, gradient in gradients.items():
        parameter.grad = gradient.clone()
    optimizer.step()


def test_five_steps_bring_singular_values_into_the_published_band() -> None:
    values = torch.logspace(math.log10(0.005), 0, 64, dtype=torch.float64)
    # Scale the values to norm 1, so that normalization keeps them.
    scaled = values * (0.999 / values.norm())
    kept = scaled >= 0.005
    left, _ = torch.linalg.qr(random(96, 64, dtype=torch.float64))
    right, _ = torch.linalg.qr(random(64, 64, seed=1, dtype=torch.float64))
    matrix = left * scaled @ right.T
    found = torch.linalg.svdvals(orthogonalize_matrices(matrix, steps=5))
    reached = torch.linalg.svdvals(orthogonalize_matrices(matrix.T, steps=5))
    assert torch.allclose(found, reached)  # wide or tall
    mapped = scaled / scaled.norm()
    for _ in range(5):
        mapped = 3.4445 * mapped - 4.7750 * mapped**3 + 2.0315 * mapped**5
    assert torch.allclose(found.sort().values, mapped.sort().values, atol=1e-9)
    assert 0.682 <= mapped[kept].min() <= mapped[kept].max() <= 1.156


def test_a_matrix_keeps_its_singular_vectors() -> None:
    matrix = random(24, 16, dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    turned = left.T @ orthogonalize_matrices(matrix, steps=5) @ right.T
    assert torch.allclose(turned, torch.diag(turned.diag()), atol=1e-12)
    assert turned.diag().min() > 0.68


def test_each_matrix_of_a_stack_is_orthogonalized_separately() -> None:
    sizes = torch.tensor([1.0, 100.0, 0.01]).view(3, 1, 1)
    stack = random(3, 8, 16, dtype=torch.float64) * sizes
    alone = torch.stack([orthogonalize_matrices(matrix, steps=5) for matrix in stack])
    assert torch.allclose(orthogonalize_matrices(stack, steps=5), alone, atol=1e-12)


def test_a_zero_gradient_gives_no_update() -> None:
    assert not orthogonalize_matrices(torch.zeros(4, 4), steps=5).any()


@pytest.mark.parametrize("shape", [(32, 96), (96, 32)])
@pytest.mark.parametrize("scale", ["match_rms_adamw", "original"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_the_update_of_a_matrix_equals_torchs_muon(shape, scale, nesterov):
    ours, theirs = nn.Parameter(random(*shape)), nn.Parameter(random(*shape))
    mine = muon({NAME: ours}, update_scale=scale, nesterov=nesterov)
    adjusted: dict[str, Any] = {"adjust_lr_fn": scale, "nesterov": nesterov}
    reference = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, momentum=0.95, **adjusted)
    for seed in range(1, 5):
        step(mine, {ours: random(*shape, seed=seed)})
        step(reference, {theirs: random(*shape, seed=seed)})
    moved = (theirs - random(*shape)).norm()
    assert (ours - theirs).norm() < 0.01 * moved  # both round to bfloat16 in between


def test_the_update_equals_the_formula() -> None:
    weight, gradient = random(6, 4, dtype=torch.float64), random(6, 4, seed=1).double()
    parameter = nn.Parameter(weight.clone())
    optimizer = muon({NAME: parameter}, matrix_lr_factor=0.5)
    momentum, expected = torch.zeros_like(weight), weight
    for _ in range(3):
        step(optimizer, {parameter: gradient})
        momentum = 0.95 * momentum + 0.05 * gradient
        update = orthogonalize_matrices(0.05 * gradient + 0.95 * momentum, steps=5)
        expected = expected * (1 - 0.01 * 0.1) - 0.01 * 0.2 * math.sqrt(6) * update
    assert torch.allclose(parameter, expected, atol=1e-14)


def test_late_decay_shrinks_the_updated_weight() -> None:
    weight, gradient = random(6, 4, dtype=torch.float64), random(6, 4, seed=1).double()
    parameter = nn.Parameter(weight.clone())
    step(muon({NAME: parameter}, decay_order="after"), {parameter: gradient})
    moved = weight - 0.02 * 0.2 * math.sqrt(6) * orthogonalize_matrices(gradient, steps=5)
    assert torch.allclose(parameter, moved * (1 - 0.02 * 0.1), atol=1e-9)


@pytest.mark.parametrize(("outputs", "inputs"), [(256, 1024), (1024, 256), (64, 64)])
def test_the_update_is_nearly_as_large_as_adamws(outputs: int, inputs: int) -> None:
    update = orthogonalize_matrices(random(outputs, inputs), steps=5)
    size = update.square().mean().sqrt() * update_factor("match_rms_adamw", outputs, inputs)
    assert 0.16 < size < 0.21


def test_the_original_scale_grows_with_outputs_over_inputs() -> None:
    assert update_factor("original", 64, 16) == 2.0
    assert update_factor("original", 16, 64) == 1.0


@pytest.mark.parametrize(
    ("name", "dims", "hidden"),
    [
        ("layers.0.attention.query.weight", 2, True),
        ("layers.11.mlp.down.weight", 2, True),
        ("layers.3.mlp.up.weight", 3, True),  # of all experts
        ("layers.3.mlp.router.weight", 2, False),
        ("layers.0.attention_norm.weight", 1, False),
        ("layers.0.attention.query.bias", 1, False),
        ("embedding.weight", 2, False),
        ("positions.weight", 2, False),
        ("head.weight", 2, False),
        ("final_norm.weight", 1, False),
    ],
)
def test_only_hidden_matrices_use_muon(name: str, dims: int, hidden: bool) -> None:
    assert is_hidden_matrix(name, torch.empty([2] * dims)) == hidden


def test_other_weights_are_updated_by_adamw() -> None:
    names = ("embedding.weight", "layers.0.mlp.router.weight", "layers.0.mlp_norm.weight")
    made = [
        {name: nn.Parameter(random(*([4] * (1 + ("norm" not in name))))) for name in names}
        for _ in range(2)
    ]
    matrix = nn.Parameter(random(4, 4))
    optimizer = muon({**made[0], NAME: matrix})
    reference = AdamW(parameters=list(made[1].items()), **ADAMW)
    for seed in range(3):
        gradients = [
            {weight: random(*weight.shape, seed=seed) for weight in of.values()} for of in made
        ]
        step(optimizer, gradients[0] | {matrix: random(4, 4, seed=seed)})
        step(reference, gradients[1])
    for name in names:
        assert torch.equal(made[0][name], made[1][name])
    kept = {name: set(optimizer.state[weight]) for name, weight in made[0].items()}
    assert all(state == {"step", "exp_avg", "exp_avg_sq"} for state in kept.values())
    assert set(optimizer.state[matrix]) == {"momentum"}


def test_rates_of_embedding_and_head_follow_the_schedule() -> None:
    names = ("embedding.weight", "head.weight", "positions.weight", "final_norm.weight")
    parameters = {name: nn.Parameter(random(4, 4)) for name in (*names, NAME)}
    optimizer = muon(parameters, embedding_lr_factor=10.0, head_lr_factor=0.2)
    factors = {"embedding.weight": 10.0, "head.weight": 0.2}
    references = {
        name: AdamW(parameters=[(name, nn.Parameter(random(4, 4)))], **ADAMW) for name in names
    }
    for seed, lr in enumerate((0.02, 0.01)):
        for group in optimizer.param_groups:
            group["lr"] = lr
        step(optimizer, {weight: random(4, 4, seed=seed) for weight in parameters.values()})
        assert {group["lr"] for group in optimizer.param_groups} == {lr}
        for name, reference in references.items():
            (group,) = reference.param_groups
            group["lr"] = lr * factors.get(name, 1.0)
            step(reference, {group["params"][0]: random(4, 4, seed=seed)})
    for name, reference in references.items():
        assert torch.equal(parameters[name], reference.param_groups[0]["params"][0]), name


def test_a_parameter_without_gradient_is_unchanged_and_the_loss_computed_once() -> None:
    parameter = nn.Parameter(random(4, 4))
    assert muon({NAME: parameter}).step(lambda: 2.5) == 2.5
    assert torch.equal(parameter, random(4, 4))


def test_the_momentum_grows_over_its_tokens_as_in_nanochat() -> None:
    weight = nn.Parameter(random(8, 16, dtype=torch.float64))
    optimizer = muon(
        {NAME: weight}, momentum_start=0.85, momentum_warmup_tokens=300 * 1_024, lr=1e-9
    )
    buffer = torch.zeros_like(weight)
    for number in (0, 1, 150, 299, 300, 301):
        share = min(number / 300, 1)  # scripts/base_train.py, get_muon_momentum
        momentum = (1 - share) * 0.85 + share * 0.95
        gradient = random(8, 16, seed=number, dtype=torch.float64)
        optimizer.tokens = number * 1_024
        assert optimizer.current_momentum == pytest.approx(momentum, rel=1e-15)
        step(optimizer, {weight: gradient})
        buffer.lerp_(gradient, 1 - momentum)
        torch.testing.assert_close(optimizer.state[weight]["momentum"], buffer)
