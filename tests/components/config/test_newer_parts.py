"""Latent attention, groups of experts and dense layers at the begin: rules and miniatures."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest

from components.config.scale_down import _narrow, _shrink_groups
from components.config.schema.types import to_plain
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError
from tests.components.config.test_features import compose

DENSE_MLP = (
    "model.dense_mlp={_target_: components.model.mlp.MLP, _partial_: true, ffn_dim: 8192, "
    "activation: silu, gated: true, bias: false}"
)
GROUPS = ("model.mlp.num_groups=8", "model.mlp.top_groups=4")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("model.mlp.num_groups=64", "model.mlp.top_groups=8"),
            r"model\.mlp\.num_groups: 64 experts .* 64 equal groups.*\n.*: 1, 2, 4, 8, 16, 32",
        ),
        (
            ("model.mlp.num_groups=16", "model.mlp.top_groups=1"),
            r"top_groups: 1 of 16 groups have too few experts for top_k 8\n  use 2 to 16",
        ),
        ((*GROUPS[:1], "model.mlp.top_groups=9"), r"model\.mlp\.top_groups: 9 of 8 groups"),
        (
            (DENSE_MLP, "model.num_dense_layers=16"),
            r"model\.num_dense_layers: 16 is more than num_layers - 1 = 15\n.*=15 or",
        ),
        (
            (DENSE_MLP, "model.num_dense_layers=4", "parallelism.pipeline=4"),
            r"parallelism\.pipeline: 4: the first stage has only the 4 layers without",
        ),
    ],
)
def test_groups_and_dense_layers_that_leave_too_little_are_refused(
    words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        compose("mula7b_a1b", "scale=full", "parallelism.zero=1", *words)


def test_dense_layers_before_dense_ones_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"model\.dense_mlp: .* model\.mlp has no experts"):
        compose("teuken7b", DENSE_MLP)


def test_a_miniature_keeps_groups_shared_expert_and_dense_layers() -> None:
    words = (*GROUPS, "model.mlp.shared_ffn_dim=1024", DENSE_MLP, "model.num_dense_layers=3")
    full = compose("mula7b_a1b", "scale=full", *words).decoder_spec
    assert full.leading_layers == 3
    # What the command line names is final: a recipe's own is shrunk.
    tree = to_plain(compose("mula7b_a1b", "scale=full", *words).model)
    mini: Any = {"model": deepcopy(tree), "optimizer": {"lr": 1e-3}}
    rule = compose("mula7b_a1b").scale.shrink
    assert not isinstance(rule, str)
    mini["model"]["mlp"] |= {"num_experts": 16, "top_k": 2}
    mini["precision"] = {"compute": "auto"}
    _shrink_groups(mini["model"], tree["mlp"], UserOverrides([]), mini)
    _narrow(mini, rule, UserOverrides([]), tree)
    small = mini["model"]
    assert (small["mlp"]["num_groups"], small["mlp"]["top_groups"]) == (8, 4)
    assert small["mlp"]["shared_ffn_dim"] == small["mlp"]["ffn_dim"] == 128
    assert (small["num_dense_layers"], small["dense_mlp"]["ffn_dim"]) == (1, 1_024)


LATENT = (
    "model.attention._target_=components.model.latent_attention.LatentAttention",
    *("model.attention.num_heads=8", "model.attention.num_kv_heads=8"),
    *("model.attention.head_dim=96", "model.attention.rotary_dim=32"),
    *("model.attention.value_dim=64", "model.attention.query_rank=512"),
    "model.attention.key_value_rank=256",
    "model.attention.latent_norm={_target_: components.model.norms.Norm, _partial_: true, "
    "eps: 1e-6, center: false, weight: true, bias: false}",
)


def changed(words: Sequence[str], word: str) -> list[str]:
    """Give one of the keys another value."""
    key = word.partition("=")[0]
    return [*(one for one in words if not one.startswith(f"{key}=")), word]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "num_kv_heads=4",
            r"num_kv_heads: 4, but latent attention needs 8, one per head",
        ),
        (
            "rotary_dim=96",
            r"rotary_dim: 96 is more than head_dim - 1 = 95",
        ),
        ("rotary_dim=31", r"attention\.rotary_dim: 31 is odd, but rotary positions rotate"),
        ("value_dim=97", r"attention\.value_dim: 97 is more than head_dim 96"),
        ("layer_scaling=true", r"model\.attention\.layer_scaling"),
    ],
)
def test_latent_heads_that_contradict_each_other_are_refused(word: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        compose("teuken7b", "scale=full", *changed(LATENT, f"model.attention.{word}"))


def test_a_gate_without_a_shared_expert_is_refused() -> None:
    said = r"model\.mlp\.shared_gate: true, but there is no shared expert\n  set "
    with pytest.raises(RecipeError, match=said):
        compose("mula7b_a1b", "scale=full", "model.mlp.shared_gate=true")


def test_a_fraction_of_latent_heads_is_refused() -> None:
    said = r"positions\.rotary_fraction: 0\.5, but latent attention rotates rotary_dim\n  set "
    with pytest.raises(RecipeError, match=said):
        compose("teuken7b", "scale=full", *LATENT, "model.positions.rotary_fraction=0.5")


def test_a_miniature_rotates_the_same_fraction_in_whole_pairs() -> None:
    for scale in ("mini", "full"):
        word = "model.positions.rotary_fraction=0.3"
        spec = compose("teuken7b", f"scale={scale}", word).decoder_spec
        width = spec.attention.head_dim
        assert spec.positions.rotary_width(width) == {32: 10, 128: 38}[width]


def test_latent_attention_counts_its_own_widths() -> None:
    plain, latent = (
        compose("teuken7b", "scale=full"),
        compose("teuken7b", "scale=full", *LATENT),
    )
    dim, layers = latent.decoder_spec.dim, latent.decoder_spec.num_layers
    down = dim * (512 + 256 + 32) + 512 + 256
    heads = 512 * 8 * 96 + 256 * 8 * (64 + 64) + 8 * 64 * dim
    other = (
        plain.decoder_spec.total_parameters
        - layers * plain.decoder_spec.attention.count_parameters(dim)
    )
    assert latent.decoder_spec.total_parameters == other + layers * (down + heads)
    flops = latent.derived_numbers.flops_per_token
    attended = 2 * 8 * (96 + 64) * latent.budget.sequence_length  # forward, of each token
    assert flops.full - flops.causal == 3 * layers * attended // 2


def narrowed(*words: str) -> Any:
    """Return the attention of the miniature."""
    tree = to_plain(compose("teuken7b", "scale=full", *words).model)
    mini: Any = {"model": deepcopy(tree), "optimizer": {"lr": 1e-3}}
    mini["precision"] = {"compute": "auto"}
    rule = compose("teuken7b").scale.shrink
    assert not isinstance(rule, str)
    _narrow(mini, rule, UserOverrides([]), tree)
    return mini["model"]["attention"]


def test_a_miniature_narrows_latent_attention_in_all_its_widths() -> None:
    small = narrowed(*LATENT)
    assert small["head_dim"] == 32
    assert (small["rotary_dim"], small["value_dim"]) == (10, 22)
    assert (small["query_rank"], small["key_value_rank"]) == (32, 16)


def test_what_divides_scores_narrows_with_the_heads() -> None:
    small = narrowed("model.attention.scale_dim=168")  # of heads that are 128 wide
    assert (small["head_dim"], small["scale_dim"]) == (32, 42)
    assert narrowed().get("scale_dim") is None


def test_norms_on_both_sides_are_counted_and_scales_are_none() -> None:
    plain = compose("teuken7b", "scale=full")
    words = ("model.embedding_scale=sqrt_dim", "model.attention.scale_dim=64")
    both = compose("teuken7b", "scale=full", "model.norm_placement=both", *words)
    more = both.derived_numbers.parameters.total - plain.derived_numbers.parameters.total
    assert more == 2 * plain.decoder_spec.num_layers * plain.decoder_spec.dim
    flops, before = both.derived_numbers.flops_per_token, plain.derived_numbers.flops_per_token
    assert flops.full - before.full == flops.causal - before.causal == 6 * more
