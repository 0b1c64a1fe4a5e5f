"""What a branch would read otherwise than its parent is found before a folder is made."""

from pathlib import Path

import pytest

from tests.life.conftest import ROOT, Program, tiny

WORDS = (
    *("data.on_exhausted=redistribute", "data.shares={own: 0.5, eu: 0.5}"),
    *("budget.total_tokens=2_048", "evaluation.every_tokens=4_096"),
    *("checkpoint.every_tokens=1_024", "evaluation.max_windows_per_source=1"),
)
TEXT = ROOT / "corpora" / "eu24" / "en.txt"


OWN = "own: {files: [own.txt], most_epochs: 1}"
TRUNK = tiny(*WORDS, f"data.sources={{{OWN}, eu: {{files: ['{TEXT.parent}/*.txt']}}}}")
BRANCH = (*TRUNK, "run=refused", "from.run=trunk", "from.at_tokens=1_024")


@pytest.mark.long
def test_other_texts_another_tokenizer_and_another_past_are_refused(
    home: Path, program: Program
) -> None:
    text = home / "own.txt"
    text.write_text(TEXT.read_text("utf-8")[:6_000], "utf-8")
    program(*TRUNK, "run=trunk")
    with_optimizer, with_weights = "from.with=optimizer", "from.with=weights"

    longer = tiny(*BRANCH, with_optimizer, "budget.total_tokens=8_192")
    said = program(*longer, status=2).stderr
    assert "budget.total_tokens: the parent drew 8 samples of own" in said
    text.write_text(TEXT.with_name("de.txt").read_text("utf-8")[:6_000], "utf-8")
    said = program(*BRANCH, with_weights, status=2).stderr
    assert "tokenizer: differs from the parent's tokenizer" in said
    same = f"data.tokenizer_folder={said.partition('set data.tokenizer_folder=')[2].strip()}"
    said = program(*BRANCH, with_optimizer, same, status=2).stderr
    assert "data.sources.own: the text differs from the text that the parent read" in said
    assert not (home / "refused").exists()
    program(*BRANCH, with_weights, same)
