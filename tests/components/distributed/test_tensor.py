"""Split over tensor ranks, a decoder has the loss and the gradients of the whole one."""

import pytest

from components.config.model_spec import positions
from components.config.model_spec.parametrization import CompletePSpec
from tests.components.distributed import tensor_cases
from tests.components.distributed.ranks import Ranks
from tests.components.distributed.tensor_cases import BARE_LAYER_NORM, BLOOM, RMS_NORM, Parts
from tests.components.model.specs import experts_spec

LLAMA = Parts()
HEAD_NORMS = Parts(qk_norm=RMS_NORM, qk_norm_over="each_head")
NANOCHAT = Parts(
    num_kv_heads=8,
    qk_norm=tensor_cases.BARE_RMS_NORM,
    qk_norm_over="each_head",
    norm=tensor_cases.BARE_RMS_NORM,
    embedding_norm=tensor_cases.BARE_RMS_NORM,
    mlp=tensor_cases.RELU_SQUARED,
    logit_cap=1.5,
)
APERTUS = HEAD_NORMS._replace(mlp=tensor_cases.XIELU)
NORMS_AFTER = Parts(qk_norm=RMS_NORM, norm_placement="after")
COMPLETEP = CompletePSpec(base_dim=7, base_layers=1, embedding_multiplier=3.0)
GATED = HEAD_NORMS._replace(num_kv_heads=2, bias=True, output_gate=True)
SINKS = Parts(num_kv_heads=2, bias=True, windows=(5, "full"), sinks=True)
FAMILIES = {
    "llama": LLAMA,
    "bloom": BLOOM,
    "gpt": tensor_cases.GPT._replace(
        positions=positions.LearnedSpec(num_positions=tensor_cases.LENGTH + 4)
    ),
    "tied llama": LLAMA._replace(tied=True),
    "norms without parameters": Parts(
        num_kv_heads=8, norm=BARE_LAYER_NORM, positions=positions.OrderSpec()
    ),
    "query-key norm": Parts(qk_norm=RMS_NORM),
    "centered query-key norm": Parts(num_kv_heads=8, qk_norm=tensor_cases.LAYER_NORM),
    "bare query-key norm": Parts(qk_norm=BARE_LAYER_NORM, norm=BARE_LAYER_NORM),
    "one group": Parts(num_kv_heads=1, bias=True),
    "one group, query-key norm": Parts(num_kv_heads=1, qk_norm=tensor_cases.LAYER_NORM),
    "query-key norm of each head": HEAD_NORMS,
    "one group, query-key norm of each head": HEAD_NORMS._replace(num_kv_heads=1),
    "norms after": NORMS_AFTER,
    "gemma 3": tensor_cases.GEMMA3,
    "a trained activation": APERTUS,
    "latent attention": Parts(attention=tensor_cases.LATENT),
    "latent keys alone": Parts(
        attention=tensor_cases.LATENT.model_copy(update={"query_rank": None})
    ),
    "bare norms and capped logits": NANOCHAT,
    "a z-loss": Parts(z_loss=0.1),
    "a z-loss of capped logits, tied": NANOCHAT._replace(z_loss=0.1, tied=True),
    "norms after, with biases": Parts(bias=True, mlp=tensor_cases.GELU, norm_placement="after"),
    "multiplied branches and ends": Parts(parametrization=COMPLETEP, tied=True),
    "linear mixers": tensor_cases.HYBRID,
    "an output gate": GATED,
    "sinks": SINKS,
    "channels that do not rotate": Parts(
        positions=positions.RotarySpec(base=10_000.0, rotary_fraction=0.6)
    ),
    "a layer that does not rotate": Parts(
        positions=positions.InterleavedRotarySpec(base=10_000.0, skip_every=2)
    ),
}
# Each of these differs in one part from a family that `make test` runs.
LONG = {
    "tied llama",
    "centered query-key norm",
    "bare query-key norm",
    "one group",
    "query-key norm of each head",
    "latent keys alone",
    "a z-loss",
    "norms after, with biases",
}
sequence_parallel = pytest.mark.parametrize(
    "sequence_parallel", [False, True], ids=["whole", "sliced"]
)


@pytest.mark.quick(
    *(f"sliced-{family}" for family in FAMILIES if family not in LONG),
    *("whole-llama", "whole-linear mixers"),
)
@pytest.mark.parametrize("family", FAMILIES)
@sequence_parallel
def test_two_ranks_equal_one_process(two_ranks, family, sequence_parallel):
    tensor_cases.assert_small(
        two_ranks(tensor_cases.compare, FAMILIES[family], sequence_parallel, False)
    )


SHARED_HEADS = {
    "bloom": BLOOM,
    "two groups": Parts(num_kv_heads=2),
    "two groups, query-key norm": Parts(num_kv_heads=2, bias=True, tied=True, qk_norm=RMS_NORM),
    "one group, query-key norm": Parts(
        num_kv_heads=1, num_heads=4, qk_norm=tensor_cases.LAYER_NORM
    ),
    "two groups, norm of each head": HEAD_NORMS._replace(num_kv_heads=2, bias=True),
    "gemma 3": tensor_cases.GEMMA3,
    "an output gate": GATED,
    "sinks": SINKS,
}


@pytest.mark.quick("whole-two groups", "sliced-one group, query-key norm")
@pytest.mark.parametrize("family", SHARED_HEADS)
@sequence_parallel
def test_four_ranks_equal_one_process_also_where_they_share_key_value_heads(
    four_ranks: Ranks, family: str, sequence_parallel: bool
) -> None:
    tensor_cases.assert_small(
        four_ranks(tensor_cases.compare, SHARED_HEADS[family], sequence_parallel, False)
    )


@pytest.mark.quick("sliced-llama", "sliced-bloom", "sliced-hybrid")
@pytest.mark.parametrize(
    "parts", [LLAMA, BLOOM, tensor_cases.HYBRID], ids=["llama", "bloom", "hybrid"]
)
@sequence_parallel
def test_documents_separate_the_attention_of_every_rank(two_ranks, parts, sequence_parallel):
    tensor_cases.assert_small(two_ranks(tensor_cases.compare, parts, sequence_parallel, True))


@pytest.mark.quick("sliced-llama", "sliced-bloom", "whole-capped")
@pytest.mark.parametrize("parts", [LLAMA, BLOOM, NANOCHAT], ids=["llama", "bloom", "capped"])
@sequence_parallel
def test_logits_are_complete_on_every_rank(two_ranks, parts, sequence_parallel):
    assert (
        max(two_ranks(tensor_cases.logits_difference, parts, sequence_parallel))
        < tensor_cases.LOSS_TOLERANCE
    )


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        (Parts(mlp=experts_spec()), "experts cannot be split over this axis yet"),
        (Parts(num_heads=3, num_kv_heads=3), "num_kv_heads = 3"),
        (Parts(num_heads=3, num_kv_heads=1), "num_heads = 3"),
        (Parts(mlp=tensor_cases.SWIGLU.model_copy(update={"ffn_dim": 33})), "ffn_dim = 33"),
        (Parts(rows=67), "padded_vocab_size = 67"),
    ],
    ids=["experts", "groups", "heads", "inner width", "rows"],
)
def test_sizes_that_do_not_divide_are_refused(two_ranks, parts, problem):
    for message in two_ranks(tensor_cases.refuse, parts, False):
        assert "parallelism.tensor" in message
        assert problem in message


def test_an_odd_sequence_cannot_be_sliced(two_ranks: Ranks) -> None:
    for message in two_ranks(tensor_cases.refuse, LLAMA, True):
        assert "budget.sequence_length" in message
        assert "use 16, or parallelism.sequence_parallel=false" in message
