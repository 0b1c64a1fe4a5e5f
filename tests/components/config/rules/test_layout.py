"""Layouts that cannot run are refused from numbers alone, each with values that work."""

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.config.rules.layout import tensor_fits
from components.errors import RecipeError
from tests.components.config.helpers import refusals

# What is refused: words (of `parallelism` where they name no section), and all that is said.
REFUSED = refusals(r"""
teuken7b scale=mini budget.sequence_length=102 budget.global_batch_tokens=1_632 context=2 \
  cluster.ranks=2
    budget.sequence_length: 102 is not a multiple of two chunks for each of \
    parallelism.context=2 ranks, 4
    nearest valid values: 100 and 104
teuken7b scale=mini budget.sequence_length=6 budget.global_batch_tokens=96 context=4 \
  cluster.ranks=4
    budget.sequence_length: 6 is not a multiple of two chunks for each of \
    parallelism.context=4 ranks, 8
    nearest valid value: 8
teuken7b scale=mini budget.sequence_length=108 budget.global_batch_tokens=1_728 context=2 \
  tensor=4 cluster.ranks=8
    budget.sequence_length: 108 is not a multiple of two chunks for each of \
    parallelism.context=2 ranks, 8
    nearest valid values: 104 and 112
gpt3b6 scale=mini context=2 cluster.ranks=2 engine=mesh model.positions.num_positions=128
    model.positions.num_positions: 128 is less than budget.sequence_length 256
    write model.positions.num_positions=256 or more
teuken7b tensor=3
    parallelism.tensor: 3 does not divide model.attention.num_heads 32
    valid values: 1, 2, 4, 8, 16, 32
teuken7b tensor=4 model.attention.num_heads=36 model.attention.num_kv_heads=6
    parallelism.tensor: 4 does not divide model.attention.num_kv_heads 6 -> valid values: 1, 2
teuken7b tensor=4 model.mlp.ffn_dim=13_442
    parallelism.tensor: 4 does not divide model.mlp.ffn_dim 13,442 -> valid values: 1, 2
teuken7b tensor=4 model.padded_vocab_size=250_881
    model.padded_vocab_size: 250,881 is not a multiple of parallelism.tensor 4
    nearest valid values: 250_880 and 250_884
teuken7b budget.sequence_length=4_095 budget.global_batch_tokens=4_193_280
    budget.sequence_length: 4,095 is not a multiple of parallelism.tensor (sequence_parallel) 2
    nearest valid values: 4_094 and 4_096
teuken7b data_shard=48
    parallelism.data_shard: 48 does not divide data x expert = 128
    valid values: 1, 2, 4, 8, 16, 32, 64, 128
mula20b_a2b data_shard=900
    parallelism.data_shard: 900 does not divide data x expert = 3,072
    valid values: 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536
mula20b_a2b data_shard=128
    parallelism.data_shard: 128 is not a multiple of parallelism.expert 12
    nearest valid values: 120 and 132
mula20b_a2b expert=10 data=307
    parallelism.expert: 10 does not divide model.mlp.num_experts 96
    valid values: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96
mula20b_a2b tensor=2
    parallelism.tensor: 2, but tensor ranks cannot split experts
    set parallelism.tensor=1; to split the experts, set parallelism.expert
mula20b_a2b zero=3
    parallelism.zero: 3 would gather the experts that 12 expert ranks split
    set parallelism.zero=1 or 2, or parallelism.expert=1
mula7b_a1b zero=3
    parallelism.zero: 3 shards by expert, but 3072 ranks do not divide 64 experts
    set parallelism.data_shard to a divisor of 64, or parallelism.zero=1
bloom7b1 expert=2 data=2
    parallelism.expert: 2 is more than the maximum for a dense model, 1
    write parallelism.expert=1 or less
bloom7b1 expert_overlap=2
    parallelism.expert_overlap: 2 is more than the maximum for a dense model, 1
    write parallelism.expert_overlap=1 or less
mula20b_a2b parallelism.expert_capacity_factor=1.5
    parallelism.expert_capacity_factor: 1.5 is not supported with \
    parallelism.expert_dispatch=all_gather
    set parallelism.expert_capacity_factor=null, or change the other key
mula20b_a2b expert_capacity_factor=3 expert_dispatch=all_to_all model.mlp.path=loop
    parallelism.expert_capacity_factor: 3 is not supported with model.mlp.path=loop
    set parallelism.expert_capacity_factor=null, or change the other key
mula7b_a1b expert_capacity_factor=2
    parallelism.expert_capacity_factor: 2 is not supported with parallelism.expert=1
    set parallelism.expert_capacity_factor=null, or change the other key
bloom7b1 data_shard=4
    parallelism.data_shard: 4, but parallelism.zero=0 shards nothing
    remove this key, or set parallelism.zero=1
teuken7b zero=3
    parallelism.zero: 3 with 2 stages would gather all weights for each microbatch
    set parallelism.zero=1 or 2, or parallelism.pipeline=1
teuken7b recompute_every=2
    parallelism.recompute_every: 2, but parallelism.recompute=none recomputes no layer
    set parallelism.recompute=selective, or parallelism.recompute_every=1
teuken7b recompute=selective recompute_every=33
    parallelism.recompute_every: 33 is more than model.num_layers 32
    write parallelism.recompute_every=32 or less
teuken7b schedule=interleaved
    parallelism.stages_per_rank: 1, but interleaved needs several stages per rank
    set parallelism.stages_per_rank=2, or parallelism.schedule=1f1b
teuken7b schedule=zero_bubble
    parallelism.stages_per_rank: 1, but zero_bubble needs several stages per rank
    set parallelism.stages_per_rank=2, or parallelism.schedule=1f1b
teuken7b schedule=zbv
    parallelism.stages_per_rank: 1, but zbv needs two stages per rank
    set parallelism.stages_per_rank=2, or parallelism.schedule=interleaved
teuken7b schedule=dualpipev stages_per_rank=4
    parallelism.stages_per_rank: 4, but dualpipev needs two stages per rank
    set parallelism.stages_per_rank=2, or parallelism.schedule=interleaved
teuken7b stages_per_rank=2
    parallelism.stages_per_rank: 2, but 1f1b needs one stage per rank
    set parallelism.stages_per_rank=1, or parallelism.schedule=interleaved
teuken7b stages_per_rank=4 schedule=gpipe
    parallelism.stages_per_rank: 4, but gpipe needs one stage per rank
    set parallelism.stages_per_rank=1, or parallelism.schedule=interleaved
teuken7b pipeline=64 data=16
    parallelism.pipeline: 64 is more than num_layers 32 / stages_per_rank 1 = 32
    write parallelism.pipeline=32 or less
teuken7b pipeline=16 stages_per_rank=3 schedule=interleaved
    parallelism.pipeline: 16 is more than num_layers 32 / stages_per_rank 3 = 10
    write parallelism.pipeline=10 or less
teuken7b rank_order=[pipeline,data,tensor,context]
    parallelism.rank_order: [pipeline, data, tensor, context] must list each of the five axes \
    once
    for example, [pipeline, data, expert, context, tensor] (slowest axis first)
teuken7b rank_order=[pipeline,data,expert,tensor,tensor]
    parallelism.rank_order: [pipeline, data, expert, tensor, tensor] must list each of the \
    five axes once
    for example, [pipeline, data, expert, context, tensor] (slowest axis first)
""")
TAKEN = [
    "teuken7b scale=mini cluster.ranks=4 context=4",
    # Whole on each tensor rank: two chunks for each of two ranks are all that is cut.
    "teuken7b scale=mini cluster.ranks=8 context=2 tensor=4 sequence_parallel=false "
    "budget.sequence_length=108 budget.global_batch_tokens=1_728",
    "teuken7b tensor=8 data=64",  # two key/value heads are copied to four ranks each
    "teuken7b data_shard=32",
    "teuken7b zero=3 pipeline=1",
    "teuken7b zero=2",
    "teuken7b schedule=gpipe",
    "teuken7b schedule=interleaved stages_per_rank=4",
    "teuken7b schedule=zero_bubble stages_per_rank=2",
    "teuken7b schedule=zero_bubble stages_per_rank=2 recompute=full zero=2",
    "teuken7b schedule=zbv stages_per_rank=2",
    "teuken7b schedule=dualpipev stages_per_rank=2 compile=layers zero=2",
    "teuken7b rank_order=[data,pipeline,expert,context,tensor]",
    "bloom7b1 data_shard=1",
    "mula220b_a10b data_shard=12",
    "gpt3b6 engine=mesh zero=3",
]


def compose(words: str) -> Recipe:
    recipe, *keys = words.split()
    own = [key for key in keys if key.startswith("scale=")]
    keys = [key for key in keys if key not in own]
    named = [key if "." in key else f"parallelism.{key}" for key in keys]
    return compose_recipe(read_point([f"recipe={recipe}", *(own or ["scale=full"]), *named]))


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_an_impossible_layout_is_refused_with_possible_values(words, message):
    with pytest.raises(RecipeError) as caught:
        compose(words)
    assert str(caught.value) == message


@pytest.mark.parametrize("words", TAKEN)
def test_a_possible_layout_is_used_unchanged(words: str) -> None:
    composed = compose(words).parallelism.model_dump(mode="json")
    for word in words.split()[1:]:
        key, _, value = word.partition("=")
        if key not in composed:
            continue
        shown = composed[key]
        listed = f"[{','.join(shown)}]" if isinstance(shown, list) else str(shown)
        assert listed.casefold() == value


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("rank_order=[pipe,data,expert,context,tensor]", r"rank_order\.0: .*, got 'pipe'"),
        (
            "stage_balance=memory",
            r"stage_balance: input should be 'layers' or 'layers_and_ends'",
        ),
        ("data_shard=0", r"data_shard: input should be greater than 0, got 0"),
        ("stages_per_rank=0", r"stages_per_rank: input should be greater than 0, got 0"),
    ],
)
def test_a_wrong_word_is_refused_with_the_known_words(word: str, message: str) -> None:
    with pytest.raises(RecipeError, match=rf"parallelism\.{message}"):
        compose(f"teuken7b {word}")


def test_auto_shards_over_all_data_ranks_unless_named() -> None:
    assert compose("teuken7b").parallelism.data_shard == 128
    assert compose("mula220b_a10b").parallelism.data_shard == 32 * 12
    assert compose("bloom7b1").parallelism.data_shard == 8
    assert compose("teuken7b data_shard=4").parallelism.data_shard == 4


def test_tensor_ranks_fit_where_every_part_divides_evenly() -> None:
    shape = compose("teuken7b").decoder_spec  # 2 key/value heads, 13,440 = 2^7 x 105
    assert [n for n in range(1, 65) if tensor_fits(shape, n)] == [1, 2, 4, 8, 16, 32]


def test_a_recipe_has_as_many_stages_as_its_ranks_hold() -> None:
    words = "teuken7b schedule=interleaved stages_per_rank=4"
    assert compose("teuken7b").derived_numbers.layers_by_stage == (16, 16)
    assert compose(words).derived_numbers.layers_by_stage == (4,) * 8
    assert compose(f"{words} pipeline=1").stage_layers == (range(32),)
    assert compose("bloom176b").derived_numbers.layers_by_stage == (5, *[6] * 10, 5)
