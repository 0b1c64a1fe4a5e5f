"""Order of precedence, the miniature's rule, and how ranks are dealt."""

from pathlib import Path

import pytest
import yaml

from command.arguments import read_point
from command.composition.compose import compose_recipe
from tests.components.config.helpers import assert_refused, teuken
from tests.recipes.compositions import compose


def degrees(*words: str) -> tuple[int, int, int]:
    layout = teuken(*words).parallelism
    return layout.data, layout.tensor, layout.pipeline


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [(1, (1, 1, 1)), (2, (2, 1, 1)), (4, (2, 2, 1)), (8, (2, 2, 2)), (16, (4, 2, 2)),
     (3, (3, 1, 1)), (6, (6, 1, 1))],
)  # fmt: skip
def test_a_miniature_assigns_ranks_by_factors_of_two(ranks, expected):
    words = (f"cluster.ranks={ranks}", "budget.global_batch_tokens=12_288")
    assert degrees(*words) == expected


def test_a_degree_of_the_user_stays() -> None:
    assert degrees("cluster.ranks=4", "parallelism.pipeline=2") == (2, 1, 2)
    assert degrees("cluster.ranks=2", "parallelism.tensor=2") == (1, 2, 1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("model.num_layers=3",), (2, 2, 2)),
        (("model.num_layers=1",), (4, 2, 1)),
        (("parallelism.zero=3",), (4, 2, 1)),
        (("model.attention.num_heads=5", "model.attention.num_kv_heads=1"), (4, 1, 2)),
        (("tokenizer.vocab_size=901",), (4, 1, 2)),
        (("budget.sequence_length=255", "budget.global_batch_tokens=4_080"), (4, 1, 2)),
        (("parallelism.stages_per_rank=3", "parallelism.schedule=interleaved"), (4, 2, 1)),
    ],
)
def test_an_axis_without_room_in_the_small_model_has_one_rank(words, expected):
    assert degrees("cluster.ranks=8", *words) == expected


def test_a_miniature_keeps_layout_settings_of_its_recipe() -> None:
    keys = ("zero", "sequence_parallel", "schedule", "stage_balance", "rank_order", "recompute")
    for name in ("teuken7b", "bloom176b", "mula220b_a10b"):
        full, mini = (
            compose(name, word).parallelism for word in ("scale=full", "cluster.ranks=8")
        )
        for key in keys:
            assert getattr(mini, key) == getattr(full, key)


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (("cluster.ranks=4",), 8),
        (("cluster.ranks=8",), 4),
        (("cluster.ranks=8", "parallelism.pipeline=4"), 2),
        (("cluster.ranks=8", "budget.global_batch_tokens=1_024"), 1),
    ],
)
def test_microbatches_are_the_largest_that_keep_every_stage_busy(words, size):
    assert teuken(*words).parallelism.microbatch_sequences == size


def test_the_published_layout_fills_its_home() -> None:
    recipe = teuken("cluster=juwels")
    assert (recipe.cluster.ranks, recipe.cluster.nodes) == (512, 128)
    assert degrees("cluster=juwels") == (128, 2, 2)


def test_nodes_or_the_data_degree_derive_the_other() -> None:
    assert degrees("cluster=juwels", "cluster.nodes=64") == (64, 2, 2)
    assert teuken("cluster=juwels", "parallelism.data=32").cluster.nodes == 32


def test_a_miniature_uses_the_nodes_of_a_cluster_like_ranks() -> None:
    words = ("cluster=juwels", "scale=mini")
    assert degrees(*words, "cluster.nodes=2") == (2, 2, 2)
    assert teuken(*words).cluster.nodes == 1
    assert degrees(*words) == degrees("cluster.ranks=4")


def test_ranks_that_do_not_fill_nodes_propose_layouts_that_do() -> None:
    said = r"508 ranks are not a multiple of 8 devices per node\n.*126 and 128"
    assert_refused("scale=full cluster.devices_per_node=8 parallelism.data=127", said)


def test_precedence_is_user_rule_recipe_default() -> None:
    assert teuken("scale=full").data.held_out_fraction == 0.005  # the recipe's
    assert teuken().data.held_out_fraction == 0.05  # the rule's
    assert teuken("data.held_out_fraction=0.1").data.held_out_fraction == 0.1  # the user's
    assert teuken().scale.name == "mini"  # the cluster's profile chose it
    assert teuken("scale=full").scale.name == "full"  # the user did
    assert teuken("scale=full").parallelism.microbatch_sequences == 1
    assert teuken("scale=full").parallelism.schedule == "1f1b"  # conf's


@pytest.mark.parametrize(
    "word",
    [
        *("model.dim=512", "model.num_layers=7", "model.attention.num_heads=4"),
        *("model.attention.num_kv_heads=8", "model.mlp.ffn_dim=96", "optimizer.lr=0.5"),
        *("budget.total_tokens=409600", "budget.sequence_length=128"),
        *("schedule.phases.first.warmup_tokens=4096", "precision.compute=bfloat16"),
        *("checkpoint.every_tokens=4096", "parallelism.microbatch_sequences=2"),
    ],
)
def test_no_rule_changes_keys_of_the_user(word: str) -> None:
    here, (path, _, value) = teuken(word).model_dump(mode="json"), word.partition("=")
    for step in path.split("."):
        here = here[step]
    assert str(here) == value


def test_the_miniature_keeps_every_feature() -> None:
    mini, full = teuken(), teuken("scale=full")
    for key in ("positions", "norm", "initialization", "tied_embeddings"):
        assert mini.model[key] == full.model[key]
    assert mini.model["mlp"]["gated"]
    assert not mini.model["mlp"]["bias"]
    assert mini.model["attention"]["num_heads"] > mini.model["attention"]["num_kv_heads"] > 1
    shape = mini.decoder_spec
    assert shape.padded_vocab_size > shape.vocab_size == mini.tokenizer["vocab_size"]
    assert mini.schedule["phases"].keys() == full.schedule["phases"].keys()


def test_the_miniature_keeps_the_proportions_of_the_schedule() -> None:
    phases = teuken("budget.total_tokens=1_000_000").schedule["phases"]
    assert phases["first"]["total_tokens"] == phases["second"]["total_tokens"] == 500_000
    assert phases["first"]["warmup_tokens"] == 8_388_608_000 * 1_000_000 // 6_000_000_000_000


def test_the_miniature_keeps_the_proportions_of_a_decay(tmp_path: Path) -> None:
    defaults = ["bloom1b1", {"override /schedule": "wsd"}]
    own = {"defaults": defaults, "name": "own", "schedule": {"decay_tokens": 41_000_000_000}}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
    word = f"recipe={tmp_path}/own.yaml"
    full, mini = (
        compose_recipe(read_point([word, f"scale={one}"])) for one in ("full", "mini")
    )
    assert mini.schedule["decay_shape"] == full.schedule["decay_shape"] == "linear"
    for key in ("total_tokens", "warmup_tokens", "decay_tokens"):
        length = full.schedule[key] * mini.budget.total_tokens // full.budget.total_tokens
        assert mini.schedule[key] == length > 0


def test_filler_join_the_sources_that_have_text() -> None:
    data = teuken().data
    assert sum(data.shares.values()) == pytest.approx(1)
    assert data.sources["mt"].embedded == "eu24/mt"
    assert data.shares["python_source"] + data.shares["python_docs"] == pytest.approx(0.85)
    assert data.shares["de"] / data.shares["en"] == pytest.approx(0.109181 / 0.4)


def test_the_users_files_replace_the_embedded_text() -> None:
    data = teuken("data.sources.en.files=[a.txt,b.jsonl]").data
    assert data.sources["en"].files == ("a.txt", "b.jsonl")
    assert data.sources["en"].embedded is None
    assert data.sources["de"].embedded == "eu24/de"


def test_a_vocabulary_named_once_fits_tokenizer_and_rows() -> None:
    recipe = teuken("tokenizer.vocab_size=900")
    assert recipe.decoder_spec.vocab_size == 900
    assert recipe.decoder_spec.padded_vocab_size == 932


def test_an_open_value_must_be_given() -> None:
    assert_refused("budget.seed='???'", r"budget\.seed: the recipe does not set this key")
    pieces = "tokenizer=bpe_gpt2 tokenizer.last_pieces=['???', '<|endoftext|>']"
    assert_refused(pieces, r"last_pieces: the recipe does not set this key")
