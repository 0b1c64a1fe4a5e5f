"""Our decoder against nanochat's forward pass and loss, restated here.

github.com/karpathy/nanochat at b399e43, nanochat/gpt.py; cosines are not rounded to bfloat16.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from components.build import build_node
from components.config.schema.types import to_plain
from components.model.decoder import Decoder
from tests.components.model.comparison import gradient_of, relative_difference
from tests.recipes.compositions import composed

RECIPE = composed("nanochat_d20", "mini")
HEADS, WIDTH = (RECIPE.model["attention"][key] for key in ("num_heads", "head_dim"))
LAYERS = RECIPE.model["num_layers"]
Weights = dict[str, Tensor]


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.size(-1),), eps=torch.finfo(torch.float32).eps)  # default of torch


def turned(x: Tensor) -> Tensor:
    """Turn (batch, seq, heads, width) clockwise: y1 = x1 cos + x2 sin."""
    half = WIDTH // 2
    frequencies = 1.0 / 10_000 ** (torch.arange(0, WIDTH, 2, dtype=x.dtype) / WIDTH)
    angles = torch.outer(torch.arange(x.shape[1], dtype=x.dtype), frequencies)[:, None]
    first, second, cos, sin = x[..., :half], x[..., half:], angles.cos(), angles.sin()
    return torch.cat([first * cos + second * sin, -first * sin + second * cos], -1)


def attend(w: Weights, prefix: str, x: Tensor) -> Tensor:
    query, key, value = (
        F.linear(x, w[f"{prefix}.c_{name}"]).unflatten(-1, (HEADS, WIDTH)) for name in "qkv"
    )
    query, key = norm(turned(query)), norm(turned(key))
    query, key, value = (side.transpose(1, 2) for side in (query, key, value))
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return F.linear(mixed.transpose(1, 2).flatten(-2), w[f"{prefix}.c_proj"])


def nanochat(w: Weights, tokens: Tensor) -> Tensor:
    x = norm(F.embedding(tokens, w["wte"]))
    for layer in range(LAYERS):
        x = x + attend(w, f"h.{layer}.attn", norm(x))
        up = F.linear(norm(x), w[f"h.{layer}.mlp.c_fc"])
        x = x + F.linear(up.relu().square(), w[f"h.{layer}.mlp.c_proj"])
    return 15 * torch.tanh(F.linear(norm(x), w["lm_head"]) / 15)


def swapped(weight: Tensor) -> Tensor:
    """Swap the halves of each head, which reverses the direction of rotation."""
    heads: Tensor = weight.unflatten(0, (HEADS, 2, WIDTH // 2))
    return heads.flip(1).flatten(0, 2)


def theirs(model: Decoder) -> Weights:
    """Name our weights as nanochat does."""
    ours = {name: weight.detach() for name, weight in model.named_parameters()}
    found = {"wte": ours["embedding.weight"], "lm_head": ours["head.weight"]}
    for layer in range(LAYERS):
        attention, mlp = f"layers.{layer}.attention", f"layers.{layer}.mlp"
        maps = {"q": swapped(ours[f"{attention}.query.weight"])}
        maps["k"] = swapped(ours[f"{attention}.key.weight"])
        maps["v"] = ours[f"{attention}.value.weight"]
        maps["proj"] = ours[f"{attention}.output.weight"]
        found |= {f"h.{layer}.attn.c_{name}": weight for name, weight in maps.items()}
        found[f"h.{layer}.mlp.c_fc"] = ours[f"{mlp}.up.weight"]
        found[f"h.{layer}.mlp.c_proj"] = ours[f"{mlp}.down.weight"]
    assert len(found) == len(ours)
    return {name: weight.clone().requires_grad_() for name, weight in found.items()}


def test_logits_loss_and_gradients_equal_nanochat() -> None:
    torch.manual_seed(0)
    model = build_node(to_plain(RECIPE.model), "model")
    assert isinstance(model, Decoder)
    model = model.double()
    with torch.no_grad():  # nanochat initializes some weights with zeros
        for weight in model.parameters():
            weight.normal_(std=2.0 / weight.shape[-1] ** 0.5)
    weights = theirs(model)
    rows = torch.randint(RECIPE.decoder_spec.vocab_size, (2, 33))
    tokens, targets = rows[:, :-1], rows[:, 1:]
    logits = nanochat(weights, tokens)
    assert logits.abs().max() > 4  # large enough for the cap
    assert (model(tokens) - logits).abs().max() < 1e-5
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss = model.compute_loss(tokens, targets)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    torch.autograd.backward([loss, expected])
    for name in ("embedding", "head"):
        expected = gradient_of(weights[{"embedding": "wte", "head": "lm_head"}[name]])
        found = gradient_of(model.get_parameter(f"{name}.weight"))
        assert relative_difference(found, expected) < 1e-6
    query = gradient_of(model.get_parameter("layers.0.attention.query.weight"))
    expected = gradient_of(weights["h.0.attn.c_q"])
    assert relative_difference(swapped(query), expected) < 1e-6
