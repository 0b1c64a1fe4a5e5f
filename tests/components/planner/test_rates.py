"""The conventions against the figures that their users printed."""

import pytest
import torch

from benchmarks.planning.measured import read_rows
from benchmarks.planning.planner_accuracy import DATA
from components.config.model_spec.attention import AttentionSpec
from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.feed_forward import FeedForwardSpec
from components.config.model_spec.initialization import NormalSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import PositionsSpec
from components.planner.rates import flops_by_convention
from tests.components.planner.jobs import gpt, with_values
from tests.recipes.compositions import composed

LLAMA_3_8B = DecoderSpec(
    dim=4_096,
    num_layers=32,
    vocab_size=128_256,
    padded_vocab_size=128_256,
    tied_embeddings=False,
    attention=AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, bias=False),
    mlp=FeedForwardSpec(ffn_dim=14_336, gated=True),
    norm=NormSpec(eps=1e-5, center=False, weight=True, bias=False),
    positions=PositionsSpec(base=500_000.0),
    initialization=NormalSpec(std=0.02, residual="scaled", padding_row=None),
)


def test_llama_3_8b_at_8192_has_57_9_gigaflops_full_and_51_5_causal() -> None:
    """Megatron-Bridge: 744 TFLOP/s at 14,451 tokens a second are 51.48 GFLOP a token."""
    flops = flops_by_convention(LLAMA_3_8B, 8_192, pipeline=1)
    assert round(flops["full"] / 1e9, 1) == 57.9
    assert round(flops["causal"] / 1e9, 2) == 51.47
    assert flops["causal_recomputed_attention"] - flops["causal"] == 32 * 4_096 * 8_192


def test_flops_of_windows_follow_the_mask() -> None:
    """A causal mask of 64 tokens has 2,080 pairs, which count 2,048; a window's have 904."""
    shape = with_values(LLAMA_3_8B, attention={"windows": (16, 16, 64, "full")})
    behind = torch.arange(64)[:, None] - torch.arange(64)
    pairs = [int(((behind >= 0) & (behind < window)).sum()) for window in (16, 64)]
    assert pairs == [904, 2_080]
    halves = [904 - 16 / 2, 2_080 - 64 / 2]  # of its own token each query counts half
    assert shape.causal_keys(64) == (16 * halves[0] + 16 * halves[1]) / 64
    flops, plain = (flops_by_convention(one, 64, pipeline=1) for one in (shape, LLAMA_3_8B))
    assert plain["full"] - flops["full"] == 12 * 16 * 4_096 * (64 - 16)
    causal = 12 * 4_096 * shape.causal_keys(64)
    assert flops["causal"] == plain["full"] - 12 * 32 * 4_096 * 64 + causal
    assert flops["causal_recomputed_attention"] == flops["causal"] + causal / 6


def test_nanotrons_388_teraflops_count_full_attention() -> None:
    """The playbook's fourth row: the same model on a pipeline of two, tied ends twice."""
    rows = [row for row in read_rows(DATA / "h100_layouts.csv") if row.ran]
    fastest = rows[0]
    rate = fastest.job.tokens_per_step / fastest.seconds / fastest.job.layout.num_ranks
    flops = flops_by_convention(fastest.job.shape, 4_096, pipeline=1)
    assert round(flops["full"] * rate / 1e12, 1) == 388.0
    piped = flops_by_convention(fastest.job.shape, 4_096, pipeline=2)
    assert round(flops["ends_twice"] / 1e9, 2) == round(flops["full"] / 1e9, 2)
    assert piped["ends_twice"] / 1e9 == pytest.approx(11.276, rel=2e-4)
    assert rows[3].job.layout.pipeline == 2
    rate = rows[3].job.tokens_per_step / rows[3].seconds / rows[3].job.layout.num_ranks
    assert round(piped["full"] * rate / 989e12, 3) == 0.380
    assert round(piped["ends_twice"] * rate / 989e12, 3) == 0.443


def test_megatron_prints_1_73_times_what_teuken_computes() -> None:
    recipe = composed("teuken7b", "full")
    flops = flops_by_convention(recipe.decoder_spec, 4_096, pipeline=2)
    assert round(flops["full"] / 1e9, 1) == 51.2
    assert round(flops["causal"] / 1e9, 1) == 47.9
    assert round(flops["megatron_logged_fourfold"] / 1e9, 1) == 88.4
    assert round(flops["megatron_logged_fourfold"] / flops["full"], 2) == 1.73


def test_155_of_206_9_teraflops_are_without_selective_recomputation() -> None:
    """jubench-megatron-lm's 13B: 60,777.68 tokens a second on 32 A100s."""
    shape = gpt(dim=5_120, num_layers=40, num_heads=32, vocab_size=50_304)
    flops = flops_by_convention(shape, 2_048, pipeline=4)
    rate = 60_777.68 / 32
    assert flops["megatron_logged_fourfold"] * rate / 1e12 == pytest.approx(206.885, rel=2e-3)
    assert flops["megatron_logged"] * rate / 1e12 == pytest.approx(155.2, rel=2e-3)
    assert flops["full"] * rate / 1e12 == pytest.approx(155.2, rel=5e-3)
    assert flops["fourfold"] == flops["full"] * 4 / 3


@pytest.mark.parametrize(("seconds", "printed"), [(105.22, 149.02), (104.70, 149.77)])
def test_bloom_s_formula_gives_the_teraflops_of_its_log(seconds: float, printed: float) -> None:
    """Megatron-DeepSpeed's 96 B s L h^2 (1 + s / 6 h + V / 16 L h), on 384 A100s of 312."""
    recipe = composed("bloom176b", "full")
    tokens = recipe.budget.global_batch_tokens
    flops = flops_by_convention(recipe.decoder_spec, recipe.budget.sequence_length, pipeline=12)
    logged = flops["megatron_logged_fourfold"] * tokens / seconds / 384 / 1e12
    assert logged == pytest.approx(printed, rel=1e-4)
    assert round(logged / 312, 3) == {105.22: 0.478, 104.70: 0.48}[seconds]
    model = flops["megatron_logged"] * tokens / seconds / 384 / 1e12
    assert round(model / 312, 3) == {105.22: 0.358, 104.70: 0.36}[seconds]
