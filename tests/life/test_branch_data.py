"""What a branch would read otherwise than its parent is found before a folder is made."""

from pathlib import Path

import pytest

from tests.life.conftest import ROOT, TINY, Program

CUT = ("budget.total", "checkpoint.", "evaluation.", "data.")
WORDS = (
    *(word for word in TINY if not word.startswith(CUT)),
    *("data.on_exhausted=redistribute", "data.shares={own: 0.5, eu: 0.5}"),
    "evaluation.every_tokens=4_096",
    *("checkpoint.every_tokens=1_024", "evaluation.max_windows_per_source=1"),
)
TEXT = ROOT / "corpora" / "eu24" / "en.txt"


def sources(most_epochs: str) -> str:
    own = f"own: {{files: [own.txt], most_epochs: {most_epochs}}}"
    return f"data.sources={{{own}, eu: {{files: ['{TEXT.parent}/*.txt']}}}}"


@pytest.mark.long
def test_other_texts_another_tokenizer_and_another_past_are_refused(
    home: Path, program: Program
) -> None:
    text = home / "own.txt"
    text.write_text(TEXT.read_text("utf-8")[:6_000], "utf-8")
    program(*WORDS, sources("1"), "budget.total_tokens=2_048", "run=trunk")
    branch = (*WORDS, "run=refused", "from.run=trunk", "from.at_tokens=1_024")
    on = (*branch, "from.with=optimizer")

    said = program(*on, sources("1"), "budget.total_tokens=8_192", status=2).stderr
    assert "budget.total_tokens: the parent drew 8 samples of own" in said
    text.write_text(TEXT.with_name("de.txt").read_text("utf-8")[:6_000], "utf-8")
    said = program(
        *branch, "from.with=weights", sources("1"), "budget.total_tokens=2_048", status=2
    ).stderr
    assert "tokenizer: differs from the parent's tokenizer" in said
    folder = said.partition("set data.tokenizer_folder=")[2].strip()
    same = (sources("1"), "budget.total_tokens=2_048", f"data.tokenizer_folder={folder}")
    said = program(*on, *same, status=2).stderr
    assert "data.sources.own: the text differs from the text that the parent read" in said
    assert not (home / "refused").exists()
    program(*branch, "from.with=weights", *same)
