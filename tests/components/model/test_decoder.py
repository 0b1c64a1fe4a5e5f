"""The decoder against an independent Llama, at full size on `meta`, and cut into stages."""

import copy
from collections.abc import Callable
from pathlib import Path

import hydra.utils
import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from components.errors import RecipeError
from components.model.decoder import Decoder
from components.model.initialization import initialize

LOGITS_TOLERANCE = (
    1e-5  # float32 rounds to 6e-8; a few hundred sums of either order lie between
)
GRADIENT_TOLERANCE = 1e-4  # the same through the backward pass, relative to the largest entry
MODEL = Path(__file__).parents[3] / "conf" / "model" / "teuken7b.yaml"

TO_LLAMA = {
    "embedding.": "model.embed_tokens.",
    "layers.": "model.layers.",
    "attention_norm.": "input_layernorm.",
    "mlp_norm.": "post_attention_layernorm.",
    "attention.query.": "self_attn.q_proj.",
    "attention.key.": "self_attn.k_proj.",
    "attention.value.": "self_attn.v_proj.",
    "attention.output.": "self_attn.o_proj.",
    "mlp.gate.": "mlp.gate_proj.",
    "mlp.up.": "mlp.up_proj.",
    "mlp.down.": "mlp.down_proj.",
    "final_norm.": "model.norm.",
    "head.": "lm_head.",
}


def llama_name(name: str) -> str:
    for ours, theirs in TO_LLAMA.items():
        name = name.replace(ours, theirs)
    return name


def llama_with_weights_of(
    model: Decoder, *, num_heads: int, num_kv_heads: int, head_dim: int
) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=67,
        hidden_size=48,
        intermediate_size=77,
        num_hidden_layers=2,
        rms_norm_eps=1e-5,
        tie_word_embeddings=model.head is None,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
    )
    config._attn_implementation = "eager"
    llama = LlamaForCausalLM(config)
    weights = {llama_name(name): value for name, value in model.state_dict().items()}
    missing = llama.load_state_dict(weights, strict=False)
    assert missing.unexpected_keys == []
    assert missing.missing_keys == (["lm_head.weight"] if model.head is None else [])
    return llama


def randomized(model: Decoder) -> Decoder:
    """Initialize, then move the norm weights off 1, where a forgotten weight would hide."""
    initialize(model, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(4))
    return model


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def relative_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(6, 2, 10), (6, 6, 8), (3, 1, 2)]
)
@pytest.mark.parametrize("sequence_length", [1, 37])
def test_logits_and_gradients_equal_those_of_an_independent_llama(
    small_decoder: Callable[..., Decoder],
    tied: bool,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    sequence_length: int,
) -> None:
    heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    model = randomized(small_decoder(tied_embeddings=tied, **heads))
    llama = llama_with_weights_of(model, **heads)
    tokens = torch.randint(61, (3, sequence_length + 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    logits = llama(inputs, use_cache=False).logits
    assert relative_difference(model(inputs), logits) < LOGITS_TOLERANCE
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss = model.loss(inputs, targets)
    assert loss.item() == pytest.approx(expected.item(), rel=LOGITS_TOLERANCE)

    torch.autograd.backward([expected, loss])
    theirs = dict(llama.named_parameters())
    for name, parameter in model.named_parameters():
        ours, gradient = gradient_of(parameter), gradient_of(theirs[llama_name(name)])
        if sequence_length == 1 and name.endswith(("query.weight", "key.weight")):
            # One token attends to itself alone: what is left of these gradients is rounding.
            assert ours.abs().max() < GRADIENT_TOLERANCE
            continue
        assert relative_difference(ours, gradient) < GRADIENT_TOLERANCE, name


def test_padded_rows_take_part_in_the_softmax_and_are_trained_down(
    small_decoder: Callable[..., Decoder],
) -> None:
    model = randomized(small_decoder(tied_embeddings=False))
    tokens = torch.randint(61, (2, 9))
    torch.autograd.backward(model.loss(tokens, tokens))
    assert model.head is not None
    assert gradient_of(model.head.weight)[61:].abs().sum() > 0
    lean = copy.deepcopy(model)
    assert lean.head is not None
    lean.head.weight = nn.Parameter(model.head.weight[:61].detach())
    assert model.loss(tokens, tokens) > lean.loss(tokens, tokens)


def test_a_later_token_changes_no_earlier_logit(small_decoder: Callable[..., Decoder]) -> None:
    model = randomized(small_decoder())
    tokens = torch.randint(61, (1, 20))
    changed = tokens.clone()
    changed[0, 13] = (changed[0, 13] + 1) % 61
    difference = (model(tokens) - model(changed)).abs().amax(-1)[0]
    assert difference[:13].max() < 1e-5
    assert difference[13:].min() > 1e-5


def test_the_full_size_has_exactly_the_published_parameters() -> None:
    with torch.device("meta"):
        model = hydra.utils.instantiate(OmegaConf.load(MODEL), _convert_="all")
    padded = sum(parameter.numel() for parameter in model.parameters())
    padding = (
        model.embedding.num_embeddings - model.vocab_size
    ) * model.embedding.embedding_dim
    assert padded == 7_453_544_448
    assert padded - padding == 7_452_725_248
    assert model.head is None


@pytest.mark.parametrize("tied", [True, False])
def test_two_stages_with_global_names_compute_what_the_whole_computes(
    small_decoder: Callable[..., Decoder], tied: bool
) -> None:
    whole = randomized(small_decoder(num_layers=3, tied_embeddings=tied))
    first, last = copy.deepcopy(whole), copy.deepcopy(whole)
    first.final_norm = first.head = None
    del first.layers["2"]
    del last.layers["0"], last.layers["1"]
    if not tied:
        last.embedding = None
    tokens = torch.randint(61, (2, 11))
    torch.testing.assert_close(last(first(tokens)), whole(tokens), rtol=0, atol=0)
    names = {name for name, _ in whole.named_parameters()}
    assert {n for stage in (first, last) for n, _ in stage.named_parameters()} == names


def test_bfloat16_keeps_its_precision_outside_and_float32_in_the_loss(
    small_decoder: Callable[..., Decoder],
) -> None:
    model = randomized(small_decoder())
    tokens = torch.randint(61, (2, 33))
    expected = model.loss(tokens, tokens).item()
    model = model.bfloat16()
    assert model(tokens).dtype == torch.bfloat16
    loss = model.loss(tokens, tokens)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=0.02)
    torch.autograd.backward(loss)
    assert all(
        gradient_of(parameter).dtype == torch.bfloat16 for parameter in model.parameters()
    )


def test_rejects_fewer_rows_than_tokens(small_decoder: Callable[..., Decoder]) -> None:
    with pytest.raises(RecipeError, match=r"model.padded_vocab_size: 60 rows cannot hold 61"):
        small_decoder(padded_vocab_size=60)


def test_rejects_a_model_without_layers(small_decoder: Callable[..., Decoder]) -> None:
    with pytest.raises(RecipeError, match=r"model.num_layers: 0 is no layer"):
        small_decoder(num_layers=0)


def test_rejects_heads_that_the_positions_cannot_turn(
    small_decoder: Callable[..., Decoder],
) -> None:
    with pytest.raises(RecipeError, match=r"model.attention.head_dim: 7 is odd"):
        small_decoder(head_dim=7)
