"""Split over tensor ranks, a decoder has the loss and the gradients of the whole one."""

import pytest

from components.config.model_spec.feed_forward import ExpertsSpec
from components.config.model_spec.parametrization import CompletePSpec
from components.config.model_spec.positions import (
    AlibiSpec,
    InterleavedRotarySpec,
    LearnedSpec,
    OrderSpec,
    RotarySpec,
)
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import (
    BARE_LAYER_NORM,
    BARE_RMS_NORM,
    GELU,
    GEMMA3,
    HYBRID,
    LATENT,
    LAYER_NORM,
    LENGTH,
    RELU_SQUARED,
    RMS_NORM,
    SWIGLU,
    XIELU,
    Difference,
    Parts,
    compare,
    logits_difference,
    refuse,
)

# Double precision has 16 digits; sums in another order cost the last two or three.
LOSS_TOLERANCE = 1e-12
GRADIENT_TOLERANCE = 1e-10

LEARNED = LearnedSpec(num_positions=LENGTH + 4)
LLAMA = Parts()
BLOOM = Parts(
    num_heads=12,  # no power of two
    num_kv_heads=12,
    bias=True,
    tied=True,
    positions=AlibiSpec(),
    mlp=GELU,
    norm=LAYER_NORM,
    embedding_norm=LAYER_NORM,
)
GPT = Parts(num_kv_heads=8, bias=True, tied=True, positions=LEARNED, mlp=GELU, norm=LAYER_NORM)
HEAD_NORMS = Parts(qk_norm=RMS_NORM, qk_norm_over="each_head")
NANOCHAT = Parts(
    num_kv_heads=8,
    qk_norm=BARE_RMS_NORM,
    qk_norm_over="each_head",
    norm=BARE_RMS_NORM,
    embedding_norm=BARE_RMS_NORM,
    mlp=RELU_SQUARED,
    logit_cap=1.5,
)
APERTUS = HEAD_NORMS._replace(mlp=XIELU)
NORMS_AFTER = Parts(qk_norm=RMS_NORM, norm_placement="after")
COMPLETEP = CompletePSpec(base_dim=7, base_layers=1, embedding_multiplier=3.0)
GATED = HEAD_NORMS._replace(num_kv_heads=2, bias=True, output_gate=True)
SINKS = Parts(num_kv_heads=2, bias=True, windows=(5, "full"), sinks=True)
FAMILIES = {
    "llama": LLAMA,
    "bloom": BLOOM,
    "gpt": GPT,
    "tied llama": LLAMA._replace(tied=True),
    "norms without parameters": Parts(
        num_kv_heads=8, norm=BARE_LAYER_NORM, positions=OrderSpec()
    ),
    "query-key norm": Parts(qk_norm=RMS_NORM),
    "centered query-key norm": Parts(num_kv_heads=8, qk_norm=LAYER_NORM),
    "bare query-key norm": Parts(qk_norm=BARE_LAYER_NORM, norm=BARE_LAYER_NORM),
    "one group": Parts(num_kv_heads=1, bias=True),
    "one group, query-key norm": Parts(num_kv_heads=1, qk_norm=LAYER_NORM),
    "query-key norm of each head": HEAD_NORMS,
    "one group, query-key norm of each head": HEAD_NORMS._replace(num_kv_heads=1),
    "norms after": NORMS_AFTER,
    "gemma 3": GEMMA3,
    "a trained activation": APERTUS,
    "latent attention": Parts(attention=LATENT),
    "latent keys alone": Parts(attention=LATENT.model_copy(update={"query_rank": None})),
    "bare norms and capped logits": NANOCHAT,
    "a z-loss": Parts(z_loss=0.1),
    "a z-loss of capped logits, tied": NANOCHAT._replace(z_loss=0.1, tied=True),
    "norms after, with biases": Parts(bias=True, mlp=GELU, norm_placement="after"),
    "multiplied branches and ends": Parts(parametrization=COMPLETEP, tied=True),
    "linear mixers": HYBRID,
    "an output gate": GATED,
    "sinks": SINKS,
    "channels that do not rotate": Parts(
        positions=RotarySpec(base=10_000.0, rotary_fraction=0.6)
    ),
    "a layer that does not rotate": Parts(
        positions=InterleavedRotarySpec(base=10_000.0, skip_every=2)
    ),
}
families = pytest.mark.parametrize("family", FAMILIES)
sequence_parallel = pytest.mark.parametrize(
    "sequence_parallel", [False, True], ids=["whole", "sliced"]
)


def assert_small(differences: list[Difference]) -> None:
    for difference in differences:
        assert difference.loss < LOSS_TOLERANCE
        assert difference.gradient < GRADIENT_TOLERANCE, difference.parameter


@families
@sequence_parallel
def test_two_ranks_equal_one_process(
    two_ranks: Ranks, family: str, sequence_parallel: bool
) -> None:
    assert_small(two_ranks(compare, FAMILIES[family], sequence_parallel, False))


@pytest.mark.quick("whole-two groups", "sliced-one group, query-key norm")
@pytest.mark.parametrize(
    "parts",
    [
        BLOOM,
        Parts(num_kv_heads=2),
        Parts(num_kv_heads=2, bias=True, tied=True, qk_norm=RMS_NORM),
        Parts(num_kv_heads=1, num_heads=4, qk_norm=LAYER_NORM),
        HEAD_NORMS._replace(num_kv_heads=2, bias=True),
        GEMMA3,
        GATED,
        SINKS,
    ],
    ids=[
        *("bloom", "two groups", "two groups, query-key norm", "one group, query-key norm"),
        *("two groups, query-key norm of each head", "gemma 3", "an output gate", "sinks"),
    ],
)
@sequence_parallel
def test_four_ranks_equal_one_process_also_where_they_share_key_value_heads(
    four_ranks: Ranks, parts: Parts, sequence_parallel: bool
) -> None:
    assert_small(four_ranks(compare, parts, sequence_parallel, False))


@pytest.mark.parametrize("parts", [LLAMA, BLOOM, HYBRID], ids=["llama", "bloom", "hybrid"])
@sequence_parallel
def test_documents_part_the_attention_of_every_rank(
    two_ranks: Ranks, parts: Parts, sequence_parallel: bool
) -> None:
    assert_small(two_ranks(compare, parts, sequence_parallel, True))


@pytest.mark.parametrize("parts", [LLAMA, BLOOM, NANOCHAT], ids=["llama", "bloom", "capped"])
@sequence_parallel
def test_logits_come_whole(two_ranks: Ranks, parts: Parts, sequence_parallel: bool) -> None:
    assert max(two_ranks(logits_difference, parts, sequence_parallel)) < LOSS_TOLERANCE


EXPERTS = ExpertsSpec(
    num_experts=4,
    top_k=2,
    ffn_dim=8,
    activation="silu",
    gated=True,
    renormalize=False,
    routing="learned",
    auxiliary_loss=0.0,
    auxiliary_scope="layer",
    z_loss=0.0,
    path="loop",
)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (Parts(mlp=EXPERTS), "experts cannot be split over this axis yet"),
        (Parts(num_heads=3, num_kv_heads=3), "num_kv_heads = 3"),
        (Parts(num_heads=3, num_kv_heads=1), "num_heads = 3"),
        (Parts(mlp=SWIGLU.model_copy(update={"ffn_dim": 33})), "ffn_dim = 33"),
        (Parts(rows=67), "padded_vocab_size = 67"),
    ],
    ids=["experts", "groups", "heads", "inner width", "rows"],
)
def test_refuses_what_does_not_divide(two_ranks: Ranks, parts: Parts, said: str) -> None:
    for message in two_ranks(refuse, parts, False):
        assert "parallelism.tensor" in message
        assert said in message


def test_refuses_to_slice_an_odd_sequence(two_ranks: Ranks) -> None:
    for message in two_ranks(refuse, LLAMA, True):
        assert "budget.sequence_length" in message
        assert "use 16, or parallelism.sequence_parallel=false" in message
