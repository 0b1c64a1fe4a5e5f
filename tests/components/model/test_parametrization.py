"""muP and CompleteP against their authors' code, restated for shapes."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from components.build import build_node
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.engine.optimizer import build_optimizer
from components.engine.parallelize import draw_weights
from components.model.decoder import Decoder
from components.model.first_weights import initial_stds
from components.model.layer import collect_layers
from components.optim.groups import set_rate
from components.parity.coordinates import resize_recipe
from tests.recipes.compositions import compose

MUP = {"_target_": "components.model.parametrization.MuP", "_partial_": True}
COMPLETEP = {"_target_": "components.model.parametrization.CompleteP", "_partial_": True}
DENSE, EXPERTS = "teuken7b", "mula7b_a1b"
LR, EPS, DECAY = 0.25, 2.0**-20, 0.125


def recipe_of(name: str, parametrization: dict[str, Any] | None = None) -> Recipe:
    """Make a narrow recipe with 64 channels and four layers."""
    plain = "model.initialization.residual=plain"
    recipe = compose(name, "scale=parity", "precision.compute=float32", plain)
    tree = recipe.model_dump(mode="json")
    tree["optimizer"] |= {"lr": LR, "eps": EPS, "weight_decay": DECAY}
    tree["model"] |= {} if parametrization is None else {"parametrization": parametrization}
    return check_recipe(tree)


def drawn(recipe: Recipe) -> Decoder:
    decoder: Decoder = build_node(recipe.model, "model")
    draw_weights(decoder, seed=5)
    return decoder


def tokens(recipe: Recipe) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(recipe.decoder_spec.vocab_size, (2, 17), generator=generator)


def trained(recipe: Recipe) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the initial logits and the weights after three steps."""
    decoder, rows = drawn(recipe), tokens(recipe)
    optimizer = build_optimizer(recipe, decoder, list(decoder.named_parameters()))
    logits = decoder(rows[:, :-1]).detach()
    for _ in range(3):
        optimizer.zero_grad()
        decoder.compute_loss(rows[:, :-1], rows[:, 1:]).backward()
        set_rate(optimizer, 1e-3)
        optimizer.step()
    return logits, {name: one.detach() for name, one in decoder.named_parameters()}


@pytest.mark.parametrize("name", [DENSE, EXPERTS])
def test_at_the_base_size_no_bit_changes(name: str) -> None:
    plain = recipe_of(name)
    logits, weights = trained(plain)
    sizes = {"base_dim": plain.decoder_spec.dim}
    deep = (
        COMPLETEP
        | sizes
        | {"base_layers": plain.decoder_spec.num_layers, "depth_exponent": 0.5}
    )
    for parametrization in (MUP | sizes, deep):
        ours, after = trained(recipe_of(name, parametrization))
        assert torch.equal(ours, logits)
        assert all(torch.equal(after[key], weights[key]) for key in weights)


def groups_of(recipe: Recipe) -> dict[str, tuple[float, float, float]]:
    """Map each parameter to its rate, its eps and its decay."""
    decoder = build_node(recipe.model, "model")
    names = {one: name for name, one in decoder.named_parameters()}
    optimizer = build_optimizer(recipe, decoder, list(decoder.named_parameters()))
    set_rate(optimizer, LR)
    found: dict[str, tuple[float, float, float]] = {}
    for group in optimizer.param_groups:
        decay = group["weight_decay"] + group["late_decay"]
        found |= {names[one]: (group["lr"], group["eps"], decay) for one in group["params"]}
    assert len(found) == len(names)
    return found


def grown_sides(base: Recipe, wide: Recipe) -> dict[str, tuple[int, float]]:
    """Count the growing sides of each parameter, and the growth of its inputs."""
    shapes = [
        {name: one.shape for name, one in build_node(recipe.model, "model").named_parameters()}
        for recipe in (base, wide)
    ]
    return {
        name: (sum(a != b for a, b in zip(small, large, strict=True)), large[-1] / small[-1])
        for (name, small), large in zip(shapes[0].items(), shapes[1].values(), strict=True)
    }


@pytest.mark.parametrize("name", [DENSE, EXPERTS])
def test_rates_and_decays_equal_microsofts_muadamw(name: str) -> None:
    """``MuAdamW`` (microsoft/mup, mup/optim.py, decoupled_wd=False) by infinite dimensions."""
    base = recipe_of(name, MUP | {"base_dim": 64})
    wide = resize_recipe(base, factor=4, num_layers=4)
    ours, kinds = groups_of(wide), Counter[int]()
    for weight, (sides, inputs) in grown_sides(base, wide).items():
        lr, _, decay = ours[weight]
        before = groups_of(base)[weight][2] if not kinds[sides] else decay
        kinds[sides] += 1
        if sides == 2:
            assert (lr, decay) == (LR / inputs, DECAY * inputs) == (LR / 4, DECAY * 4), weight
        elif "router" not in weight:  # theirs is a readout with a multiplier
            assert (lr, decay) == (LR, before), weight
    assert {*kinds} == {1, 2}


def test_a_router_moves_like_one_with_divided_logits() -> None:
    base = recipe_of(EXPERTS, MUP | {"base_dim": 64})
    wide, m = resize_recipe(base, factor=4, num_layers=4), 4.0
    name = "layers.0.mlp.router.weight"
    lr, eps, decay = groups_of(wide)[name]
    vector = groups_of(wide)["layers.0.mlp_norm.weight"]
    torch.manual_seed(0)
    start, inputs = torch.randn(8, 32, dtype=torch.float64), torch.randn(5, 32).double()
    ours, divided = nn.Parameter(start / m), nn.Parameter(start.clone())
    pair = (
        torch.optim.AdamW([ours], lr=lr, eps=eps, weight_decay=decay),
        torch.optim.AdamW([divided], lr=LR, eps=vector[1], weight_decay=DECAY),
    )
    for _ in range(4):
        for weight, factor, optimizer in zip((ours, divided), (1.0, 1 / m), pair, strict=True):
            optimizer.zero_grad()
            (inputs @ weight.T * factor).logsumexp(-1).sum().backward()
            optimizer.step()
    torch.testing.assert_close(inputs @ ours.T, inputs @ divided.T / m, rtol=1e-9, atol=1e-12)
    stds = {key: std for key, _, std in initial_stds(build_node(wide.model, "model"))}
    first = {key: std for key, _, std in initial_stds(build_node(base.model, "model"))}
    before = first[name]
    assert before is not None
    assert stds[name] == before / m


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_groups_equal_the_published_completep_code(alpha: float) -> None:
    """The groups of ``configure_optimizers`` in nanoGPT-mup, branch completep, of 2026."""
    sizes = {"base_dim": 64, "base_layers": 2, "depth_exponent": alpha}
    wide = resize_recipe(recipe_of(DENSE, COMPLETEP | sizes), factor=2, num_layers=8)
    m, depth = 2.0, 4.0
    width_lr_scaling, depth_lr_scaling = 1 / m, depth ** (alpha - 1)
    ends = EPS * (1 / m)
    hidden = EPS * (1 / m) * depth ** (-1 * alpha)
    for name, found in groups_of(wide).items():
        if name in {"embedding.weight", "head.weight"}:
            expected = (LR, ends, DECAY)
        elif name == "final_norm.weight":
            expected = (LR, ends, 0.0)
        elif "norm" in name:
            expected = (LR * depth_lr_scaling, hidden, 0.0)
        else:
            rate = LR * (width_lr_scaling * depth_lr_scaling)
            expected = (rate, hidden, DECAY / width_lr_scaling)
        assert found == pytest.approx(expected, rel=1e-12), name


def test_first_weights_of_hidden_matrices_have_a_variance_by_their_inputs() -> None:
    base = recipe_of(DENSE, MUP | {"base_dim": 64})
    wide = resize_recipe(base, factor=4, num_layers=4)
    first = {name: std for name, _, std in initial_stds(build_node(base.model, "model"))}
    grown = grown_sides(base, wide)
    for name, _, std in initial_stds(build_node(wide.model, "model")):
        sides, inputs = grown[name]
        expected = first[name]
        if sides == 2:
            assert expected is not None
            expected /= math.sqrt(inputs)
        assert std == expected, name


@pytest.mark.parametrize("name", [DENSE, EXPERTS])
def test_multipliers_equal_a_plain_model_with_scaled_weights(name: str) -> None:
    sizes = {"base_dim": 32, "base_layers": 2, "depth_exponent": 0.5}
    ends = {"embedding_multiplier": 3.0, "output_multiplier": 5.0}
    ours = drawn(recipe_of(name, COMPLETEP | sizes | ends)).double()
    plain = drawn(recipe_of(name)).double()
    plain.load_state_dict(ours.state_dict())
    rows = tokens(recipe_of(name))[:, :-1]
    with torch.no_grad():
        assert plain.embedding is not None
        plain.embedding.weight *= 3.0
        tied = 3.0 if plain.head is None else 1.0
        plain.get_parameter("final_norm.weight").mul_(5.0 / (64 / 32) / tied)
        for key, weight in plain.named_parameters():
            if key.endswith(("attention.output.weight", "mlp.down.weight")):
                weight.mul_((4 / 2) ** -0.5)
        torch.testing.assert_close(ours(rows), plain(rows), rtol=1e-12, atol=1e-12)


def test_fixed_multipliers_change_neither_first_weights_nor_updates() -> None:
    """Multipliers equal CompleteP's; the optimizer is the plain one."""
    fixed = {"embedding_multiplier": 3.0, "branch_multiplier": 0.5, "output_multiplier": 2.5}
    multipliers = {"_target_": "components.model.parametrization.Multipliers"} | fixed
    recipe, plain = recipe_of(DENSE, multipliers | {"_partial_": True}), recipe_of(DENSE)
    sizes = {"base_dim": 32, "base_layers": 2, "depth_exponent": 1.0}
    ends = {"embedding_multiplier": 3.0, "output_multiplier": 5.0}
    ours = drawn(recipe)
    assert groups_of(recipe) == groups_of(plain)
    expected = drawn(plain).state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in ours.state_dict().items())
    scaled = drawn(recipe_of(DENSE, COMPLETEP | sizes | ends))
    scaled.load_state_dict(ours.state_dict())
    rows = tokens(plain)[:, :-1]
    assert torch.equal(ours(rows), scaled(rows))
    assert recipe.decoder_spec.factors == (3.0, 0.5, 2.5)
    mtp: dict[str, Any] = {"_target_": "components.model.mtp.MultiTokenPrediction"}
    mtp |= {"_partial_": True, "depth": 1, "loss_weight": 0.3}
    further = build_node({**recipe.model, "mtp": mtp}, "model")
    assert [one.branch_multiplier for one in collect_layers(further).values()] == [0.5] * 5
