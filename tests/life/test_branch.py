"""A run begins from a checkpoint of another: with its optimizer, or with its weights alone."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from components.checkpoint.metadata import read_marker
from components.config.check import read_recipe
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.run.writer_lock import train_alone
from components.train.launch import launch_training
from tests.life.conftest import ROOT, Program, check_same_bits, column, entries, saved, tiny

pytestmark = pytest.mark.long

WORDS = (
    *("checkpoint.every_tokens=1_024", "checkpoint.keep=9"),
    *("evaluation.every_tokens=2_048", "evaluation.max_windows_per_source=2"),
)
TRUNK, BRANCHED, COOLED = 4_096, 2_048, 3_072


def ends(tokens: int) -> tuple[str, ...]:
    """Warm up, hold the rate, and decay over the last 1,024 of so many tokens."""
    rates = f"_target_: components.optim.schedules.WarmupStableDecay, total_tokens: {tokens}"
    rates += ", warmup_tokens: 512, decay_tokens: 1_024, warmup_from: 0.0, start: 1.0, end: 0.0"
    rates += ", decay_shape: linear"
    return (f"budget.total_tokens={tokens}", f"schedule.phases={{all: {{{rates}}}}}")


Made = Callable[..., Path]


@pytest.fixture
def made(home: Path, program: Program) -> Made:
    """Make a run once for all tests of the file, by the command."""

    def make(name: str, *words: str) -> Path:
        run = home / name
        if not (run / "results.json").exists():
            program(*tiny(*WORDS, *words), f"run={run}")
        return run

    return make


def on(parent: Path, takes: str = "optimizer", tokens: int = BRANCHED) -> tuple[str, ...]:
    return f"from.run={parent}", f"from.with={takes}", f"from.at_tokens={tokens}"


def test_a_branch_with_the_same_end_has_the_bits_of_its_trunk(made: Made) -> None:
    trunk = made("trunk", *ends(TRUNK))
    again = made("again", *on(trunk), *ends(TRUNK))
    check_same_bits(again, trunk)
    assert column(again, "loss") == column(trunk, "loss")[4:]
    (event,) = entries(again, "branch")
    assert (event["step"], event["tokens"]) == (4, BRANCHED)
    assert event["evidence"]["run"] == str(trunk)
    (resumed,) = entries(again, "resume")
    assert resumed["tokens"] == BRANCHED


def test_a_cooldown_has_the_bits_of_a_run_with_that_end(made: Made) -> None:
    trunk = made("trunk", *ends(TRUNK))
    declared = made("declared", *ends(COOLED))
    cooled = made("cooled", *on(trunk), *ends(COOLED))
    check_same_bits(cooled, declared)
    assert not saved(cooled, COOLED)["model.embedding.weight"].equal(
        saved(trunk, COOLED)["model.embedding.weight"]
    )
    assert column(cooled, "lr") == column(declared, "lr")[4:]


def test_a_branch_in_another_layout_computes_nearly_the_same(made: Made) -> None:
    trunk, declared = made("trunk", *ends(TRUNK)), made("declared", *ends(COOLED))
    two = ("cluster.ranks=2", "parallelism.tensor=2")
    moved = made("moved", *on(trunk), *ends(COOLED), *two)
    assert column(moved, "loss") == pytest.approx(column(declared, "loss")[4:], rel=1e-4)
    assert column(moved, "samples_digest") == column(declared, "samples_digest")[4:]


def test_a_branch_with_weights_alone_restarts_clock_data_and_optimizer(made: Made) -> None:
    trunk = made("trunk", *ends(TRUNK))
    long = ("budget.sequence_length=128", "model.positions.base=50_000", "optimizer.lr=1e-4")
    stage = made("stage", *on(trunk, "weights"), *ends(2_048), *long)
    assert column(stage, "tokens") == [512, 1_024, 1_536, 2_048]
    assert {int(x) for name, x in saved(stage, 2_048).items() if name.endswith(".step")} == {4}
    (first, *_), untrained = entries(stage, "held_out"), entries(trunk, "held_out")[0]
    assert first["tokens"] == 0
    assert first["loss"] < untrained["loss"] - 0.1
    marker = read_marker(stage / "checkpoints" / f"tokens-{0:015d}")
    assert marker.fresh_optimizer


def test_a_branch_links_files_of_its_trunk_and_removes_none(made, program):
    trunk = made("trunk", *ends(TRUNK))
    before = saved(trunk, BRANCHED)
    short = made("short", *on(trunk), *ends(COOLED), "checkpoint.keep=1")
    assert not (short / "checkpoints" / f"tokens-{BRANCHED:015d}").exists()
    assert all(tensor.equal(before[name]) for name, tensor in saved(trunk, BRANCHED).items())
    kept = made("cooled", *on(trunk), *ends(COOLED))
    shared = f"checkpoints/tokens-{BRANCHED:015d}/shard-00001-of-00001.safetensors"
    assert os.path.samefile(trunk / shared, kept / shared)  # noqa: PTH121 (the same in short)


def test_a_branch_interrupted_before_its_first_checkpoint_resumes(made, program):
    cooled = made("cooled", *on(made("trunk", *ends(TRUNK))), *ends(COOLED))
    shutil.copytree(cooled, cooled.with_name("expected"))
    for one in (cooled / "checkpoints").glob("tokens-*"):
        one.rename(cooled / one.name)
    (cooled / "results.json").unlink()
    with (
        pytest.raises(RecipeError, match="the checkpoint that this run starts from is not in"),
        train_alone(cooled, "run") as lock,
    ):  # as a job's ranks, before which nobody looks
        launch_training(read_recipe(cooled / "recipe.json"), RunFolder(cooled), lock)
    program(f"resume={cooled}")
    check_same_bits(cooled, cooled.with_name("expected"))


@pytest.mark.parametrize(
    ("parent", "word", "message"),
    [
        ("nowhere", "budget.seed=7", "from.run: nowhere is not a run folder"),
        ("trunk", "tokenizer=bpe_gpt2", "the tokenizer differs from the parent's"),
        ("trunk", "precision.master=float64", "precision.master: from.with=optimizer requires"),
    ],
)
def test_an_invalid_branch_is_refused_before_a_folder_is_created(
    made: Made, program: Program, home: Path, parent: str, word: str, message: str
) -> None:
    made("trunk", *ends(TRUNK))
    takes = "weights" if "tokenizer" in word else "optimizer"
    words = tiny(*WORDS, *ends(TRUNK), *on(Path(parent), takes), word)
    assert message in program(*words, "run=refused", status=2).stderr
    assert not (home / "refused").exists()


def test_merged_checkpoints_are_exported_and_start_a_run(made, program, home):
    trunk = made("trunk", *ends(TRUNK))
    words = ("action=merge", f"run={trunk}", "last=3", "average=1-sqrt", "file=merged")
    said = program(*words, "at_tokens=4_000").stderr
    assert "0.577350 of tokens-000000000001024" in said
    weights = [
        saved(trunk, tokens)["model.embedding.weight"] for tokens in (1_024, 2_048, 3_072)
    ]
    parts = (0.577350, 0.239146, 0.183503)
    mean = sum(part * one.double() for part, one in zip(parts, weights, strict=True))
    found = saved(home / "merged", COOLED)
    assert found["model.embedding.weight"].double().sub(mean).abs().max() < 1e-6
    assert not any(name.startswith("optimizer.") for name in found)
    assert "run: merged already has this run" in program(*words, status=2).stderr
    program("action=export", "run=merged", "file=exported")
    assert (home / "exported" / "config.json").exists()
    program("action=report", "run=merged")

    child = made("child", "from.run=merged", "from.with=weights", *ends(2_048))
    recipe = (child / "recipe.json").read_text("utf-8")
    assert '"merged"' in recipe
    assert '"at_tokens": 3072' in recipe
    said = program(*tiny(*WORDS, *on(home / "merged"), *ends(TRUNK)), "run=no", status=2).stderr
    assert f"from.with: {home}/merged is an average of checkpoints" in said
    said = program("action=merge", f"run={trunk}", "last=9", "file=no", status=2).stderr
    assert "last: 9 checkpoints requested, but only 4" in said
    assert not (home / "no").exists()


TEXTS = (
    *("data.on_exhausted=redistribute", "data.shares={own: 0.5, eu: 0.5}"),
    *("budget.total_tokens=2_048", "evaluation.every_tokens=4_096"),
    *("checkpoint.every_tokens=1_024", "evaluation.max_windows_per_source=1"),
)
TEXT = ROOT / "corpora" / "eu24" / "en.txt"
OWN = "own: {files: [own.txt], most_epochs: 1}"
TEXT_TRUNK = tiny(*TEXTS, f"data.sources={{{OWN}, eu: {{files: ['{TEXT.parent}/*.txt']}}}}")
TEXT_BRANCH = (*TEXT_TRUNK, "run=text-branch", "from.run=text-trunk", "from.at_tokens=1_024")


def test_a_branch_with_other_text_or_tokenizer_is_refused(home: Path, program: Program) -> None:
    text = home / "own.txt"
    text.write_text(TEXT.read_text("utf-8")[:6_000], "utf-8")
    program(*TEXT_TRUNK, "run=text-trunk")
    with_optimizer, with_weights = "from.with=optimizer", "from.with=weights"

    longer = tiny(*TEXT_BRANCH, with_optimizer, "budget.total_tokens=8_192")
    said = program(*longer, status=2).stderr
    assert "budget.total_tokens: the parent drew 8 samples of own" in said
    text.write_text(TEXT.with_name("de.txt").read_text("utf-8")[:6_000], "utf-8")
    said = program(*TEXT_BRANCH, with_weights, status=2).stderr
    assert "tokenizer: differs from the parent's tokenizer" in said
    same = f"data.tokenizer_folder={said.partition('set data.tokenizer_folder=')[2].strip()}"
    said = program(*TEXT_BRANCH, with_optimizer, same, status=2).stderr
    assert "data.sources.own: the text differs from the text that the parent read" in said
    assert not (home / "text-branch").exists()
    program(*TEXT_BRANCH, with_weights, same)
