"""Parts of newer models: their rules, their counts, and what a miniature makes of them."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from components.build import build_node
from components.config.model_spec.mtp import MTPSpec
from components.config.part_nodes import read_decoder
from components.config.scale_down import _narrow, _shrink_groups
from components.config.schema.types import to_plain
from components.config.user_overrides import UserOverrides
from components.convert.experts import DEEPSEEK_V3
from tests.components.config.helpers import assert_refused, refusals, teuken
from tests.components.convert.test_open_models import section_of
from tests.recipes.compositions import compose

DENSE_MLP = (
    "model.dense_mlp={_target_: components.model.mlp.MLP, _partial_: true, ffn_dim: 8192, "
    "activation: silu, gated: true, bias: false}"
)
GROUPS = ("model.mlp.num_groups=8", "model.mlp.top_groups=4")


def tree_and_rule(name: str, *words: str) -> tuple[Any, Any, Any]:
    """Return a model's tree, a copy of it to be shrunk, and the rule of a miniature."""
    tree = to_plain(compose(name, "scale=full", *words).model)
    mini = {"model": deepcopy(tree), "optimizer": {"lr": 1e-3}}
    mini["precision"] = {"compute": "auto"}
    return tree, mini, compose(name).scale.shrink


def test_a_miniature_keeps_groups_shared_expert_and_dense_layers() -> None:
    words = (*GROUPS, "model.mlp.shared_ffn_dim=1024", DENSE_MLP, "model.num_dense_layers=3")
    full = compose("mula7b_a1b", "scale=full", *words).decoder_spec
    assert full.leading_layers == 3
    # What the command line names is final: a recipe's own is shrunk.
    tree, mini, rule = tree_and_rule("mula7b_a1b", *words)
    mini["model"]["mlp"] |= {"num_experts": 16, "top_k": 2}
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


def test_a_miniature_rotates_the_same_fraction_in_whole_pairs() -> None:
    for scale in ("mini", "full"):
        word = "model.positions.rotary_fraction=0.3"
        spec = teuken(f"scale={scale}", word).decoder_spec
        width = spec.attention.head_dim
        assert spec.positions.rotary_width(width) == {32: 10, 128: 38}[width]


def test_latent_attention_counts_its_own_widths() -> None:
    plain, latent = teuken("scale=full"), teuken("scale=full", *LATENT)
    dim, layers = latent.decoder_spec.dim, latent.decoder_spec.num_layers
    down = dim * (512 + 256 + 32) + 512 + 256
    heads = 512 * 8 * 96 + 256 * 8 * (64 + 64) + 8 * 64 * dim
    shape = plain.decoder_spec
    other = shape.total_parameters - layers * shape.attention.count_parameters(dim)
    assert latent.decoder_spec.total_parameters == other + layers * (down + heads)
    flops = latent.derived_numbers.flops_per_token
    attended = 2 * 8 * (96 + 64) * latent.budget.sequence_length  # forward, of each token
    assert flops.full - flops.causal == 3 * layers * attended // 2


def narrowed(*words: str) -> Any:
    """Return the attention of the miniature."""
    tree, mini, rule = tree_and_rule("teuken7b", *words)
    _narrow(mini, rule, UserOverrides([]), tree)
    return mini["model"]["attention"]


def test_a_miniature_narrows_latent_attention_in_all_its_widths() -> None:
    small = narrowed(*LATENT)
    assert small["head_dim"] == 32
    assert (small["rotary_dim"], small["value_dim"]) == (10, 22)
    assert (small["query_rank"], small["key_value_rank"]) == (32, 16)


def test_the_score_scale_narrows_with_the_heads() -> None:
    small = narrowed("model.attention.scale_dim=168")  # of heads that are 128 wide
    assert (small["head_dim"], small["scale_dim"]) == (32, 42)
    assert narrowed().get("scale_dim") is None


def test_norms_on_both_sides_are_counted() -> None:
    plain = teuken("scale=full")
    words = ("model.embedding_scale=sqrt_dim", "model.attention.scale_dim=64")
    both = teuken("scale=full", "model.norm_placement=both", *words)
    more = both.derived_numbers.parameters.total - plain.derived_numbers.parameters.total
    assert more == 2 * plain.decoder_spec.num_layers * plain.decoder_spec.dim
    flops, before = both.derived_numbers.flops_per_token, plain.derived_numbers.flops_per_token
    assert flops.full - before.full == flops.causal - before.causal == 6 * more


DEEPSEEK = Path(__file__).parents[2] / "data/hugging_face/deepseek_v3.json"
MTP = (
    "model.mtp={_target_: components.model.mtp.MultiTokenPrediction, _partial_: true, "
    "loss_weight: 0.3, depth: "
)


def test_deepseek_v3_has_11_61_billion_beside_its_671() -> None:
    """README_WEIGHTS.md says 11.5e9 "unique parameters"; this is the count."""
    config = json.loads(DEEPSEEK.read_text("utf-8")) | {"num_nextn_predict_layers": 1}
    imported, _ = DEEPSEEK_V3.import_section(config)
    shape = read_decoder(section_of(config) | {"mtp": imported["mtp"]})
    dim, expert = 7_168, 3 * 7_168 * 2_048
    layer = 187_107_328 + 256 * dim + 257 * expert + 2 * dim  # without the router's biases
    assert shape.mtp_parameters == layer + 2 * dim**2 + 3 * dim == 11_610_067_968
    assert shape.total_parameters == 671_026_404_352


@pytest.mark.parametrize("recipe", ["teuken7b", "mula7b_a1b"])
def test_the_model_has_the_counted_parameters(recipe: str) -> None:
    plain, more = compose(recipe), compose(recipe, f"{MTP}2}}")
    with torch.device("meta"):
        model = build_node(to_plain(more.model), "model")
    named = dict(model.named_parameters())
    further = sum(one.numel() for name, one in named.items() if name.startswith("mtp."))
    counts = more.derived_numbers.parameters
    assert counts.mtp == further > 0
    assert counts.total == plain.derived_numbers.parameters.total
    assert "mtp" not in plain.derived_numbers.model_dump()["parameters"]
    assert more.derived_numbers.model_dump()["parameters"]["mtp"] == further


def test_mtp_flops_are_a_layer_a_map_and_the_head() -> None:
    plain, more = teuken("scale=full"), teuken(f"{MTP}2}}", "scale=full")
    dim, rows, length = 4_096, 250_680, plain.budget.sequence_length
    layer = 2 * dim**2 + 2 * dim * 256 + 3 * dim * 13_440  # attention of two groups, and MLP
    multiplied = layer + 2 * dim**2 + dim * rows + 5 * dim  # five norms
    before, after = plain.derived_numbers.flops_per_token, more.derived_numbers.flops_per_token
    assert after.full - before.full == 2 * (6 * multiplied + 12 * dim * length)
    assert after.causal - before.causal == 2 * (6 * multiplied + 6 * dim * length)


def test_an_mtp_depth_resembles_the_last_layer() -> None:
    shape = compose("mula7b_a1b").decoder_spec
    deeper = shape.model_copy(update={"mtp": MTPSpec(depth=3, loss_weight=0.1)})
    assert (shape.mtp_depth, shape.mtp_parameters, shape.shares_ends) == (0, 0, False)
    assert deeper.mtp_parameters == 3 * (shape.layer_parameters + shape.mtp_whole_parameters)
    assert deeper.shares_ends


ROOM = "components.model.parametrization"
MUP = f"model.parametrization={{_target_: {ROOM}.MuP, _partial_: true, base_dim: 2048}}"
COMPLETEP = (
    f"model.parametrization={{_target_: {ROOM}.CompleteP, _partial_: true, base_dim: 2048, "
    "base_layers: 8}"
)
PLAIN = "model.initialization.residual=plain"


EXPERTS = "recipe=mula7b_a1b scale=full parallelism.zero=1"
LARGE = {"MUP": f"scale=full {MUP}", "COMPLETEP": f"scale=full {COMPLETEP}", "MTP": f"{MTP}2}}"}
LARGE |= {"EXPERTS": EXPERTS, "DENSE": DENSE_MLP, "LATENT": " ".join(LATENT)}


@pytest.mark.parametrize(
    ("words", "said"),
    refusals(
        r"""
$EXPERTS model.mlp.num_groups=64 model.mlp.top_groups=8
    model\.mlp\.num_groups: 64 experts .* 64 equal groups.*
    .*: 1, 2, 4, 8, 16, 32
$EXPERTS model.mlp.num_groups=16 model.mlp.top_groups=1
    top_groups: 1 of 16 groups have too few experts for top_k 8
    use 2 to 16
$EXPERTS model.mlp.num_groups=8 model.mlp.top_groups=9
    model\.mlp\.top_groups: 9 of 8 groups
$EXPERTS $DENSE model.num_dense_layers=16
    model\.num_dense_layers: 16 is more than num_layers - 1 = 15
    .*=15 or
$EXPERTS $DENSE model.num_dense_layers=4 parallelism.pipeline=4
    parallelism\.pipeline: 4: the first stage has only the 4 layers without
$DENSE
    model\.dense_mlp: .* model\.mlp has no experts
scale=full $LATENT model.positions.rotary_fraction=0.5
    positions\.rotary_fraction: 0\.5, but latent attention rotates rotary_dim
    set
$MTP model.z_loss=1e-5
    model\.z_loss: .*
    .*model\.mtp=null
recipe=gpt3b6 $MTP
    model\.mtp: .* does not support model\.positions\.num_positions
    .*null
recipe=bloom560m $MTP
    model\.mtp: .* does not support model\.embedding_norm
    .*null
$MTP budget.sequence_length=2 budget.global_batch_tokens=4_096
    model\.mtp\.depth: 2 is more than sequence_length - 1 = 1
    .*depth=1
$MTP model.mtp.depth=0
    model\.mtp\.depth: .* greater than 0, got 0
$MUP model.parametrization.base_dim=1000
    parametrization\.base_dim: 1,000 is not a multiple of the head unit, 2,048
    nearest valid value: 2_048
$MUP model.parametrization.base_dim=0
    model\.parametrization\.base_dim: .* greater than 0, got 0
$MUP model.initialization.std=fan_in
    initialization\.std: .* one std .*
    .*0\.02
$COMPLETEP
    initialization\.residual: .* depth factor
    .*plain
$COMPLETEP model.initialization.residual=plain model.norm_placement=after
    model\.norm_placement: .* norms before branches
    .*before
$MUP model.embedding_scale=sqrt_dim
    embedding_scale: .* plain embeddings
    .*none
$MUP $LATENT
    key_value_rank: .* attention without latent vectors
$MUP $MTP
    model\.mtp: .* models without multi-token prediction
    .*model\.mtp=null
$MUP optimizer=muon
    optimizer: .* the updates of AdamW
    .*optimizer=adamw
""",
        **LARGE,
    ),
)
def test_conflicting_parts_are_refused(words: str, said: str) -> None:
    assert_refused(words, said)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("num_kv_heads=4", r"num_kv_heads: 4, but latent attention needs 8, one per head"),
        ("rotary_dim=96", r"rotary_dim: 96 is more than head_dim - 1 = 95"),
        ("rotary_dim=31", r"attention\.rotary_dim: 31 is odd, but rotary positions rotate"),
        ("value_dim=97", r"attention\.value_dim: 97 is more than head_dim 96"),
        ("layer_scaling=true", r"model\.attention\.layer_scaling"),
    ],
)
def test_latent_heads_that_contradict_each_other_are_refused(word: str, said: str) -> None:
    word = f"model.attention.{word}"
    others = (one for one in LATENT if not one.startswith(f"{word.partition('=')[0]}="))
    assert_refused(word, said, "scale=full", *others)


@pytest.mark.parametrize("optimizer", ["adamw", "ademamix"])
def test_supported_combinations_are_accepted(optimizer: str) -> None:
    found = teuken("scale=full", COMPLETEP, PLAIN, f"optimizer={optimizer}")
    base = found.decoder_spec.parametrization
    assert base is not None
    assert (base.base_dim, base.base_layers, base.depth_exponent) == (2_048, 8, 1.0)


def test_a_miniature_has_the_base_learning_rate_and_whole_heads() -> None:
    full, small = (teuken(f"scale={scale}", MUP) for scale in ("full", "parity"))
    plain = teuken("scale=parity")
    assert plain.optimizer["lr"] > full.optimizer["lr"]  # without a base it follows the width
    assert small.optimizer["lr"] == full.optimizer["lr"]
    assert not isinstance(plain.scale.shrink, str)
    model = to_plain(full.model)
    model["parametrization"]["base_dim"] = 1_000  # of a recipe: what the user names is final
    tree = {"model": deepcopy(model), "optimizer": {"lr": 1e-3}, "precision": {"compute": ""}}
    _narrow(tree, plain.scale.shrink, UserOverrides([]), model)
    assert (tree["model"]["dim"], tree["model"]["attention"]["num_kv_heads"]) == (64, 2)
    assert tree["model"]["parametrization"]["base_dim"] == 992  # 31 times half of 64
    assert tree["optimizer"]["lr"] == 1e-3
