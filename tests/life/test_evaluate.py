"""A checkpoint is judged: as training judged it, as ``transformers`` does, and by lm-eval."""

import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import numpy as np
import pytest
import torch
from sentencepiece import SentencePieceProcessor
from torch import Tensor
from transformers import AutoModelForCausalLM

from command.actions import evaluate
from command.arguments import read_point
from components.data.manifest import Manifest
from components.errors import RecipeError
from tests.life.conftest import ROOT, Program, act, entries, tiny

LENGTH = 64
SAME = 1e-6  # relative: float32, the same sums in other batches
FROM_OTHERS = 1e-4  # relative: float32, another library's kernels
TWO = tiny(
    "data.sources={"
    + ", ".join(
        f"{name}: {{files: ['{ROOT}/corpora/eu24/{name}.txt'], language: {language}}}"
        for name, language in (("de", "de"), ("hr", "hr"), ("sl", "hr"))
    )
    + "}",
    "data.shares={de: 0.4, hr: 0.3, sl: 0.3}",
    "data.phases={end: {from_fraction: 0.75, shares: {de: 0.9, sl: 0.1}}}",
    "data.held_out_fraction=0.2",
    "tokenizer.vocab_size=640",
    "budget.total_tokens=1_536",
    "evaluation.every_tokens=512",
    "checkpoint.every_tokens=512",
    "checkpoint.keep=9",
)


@pytest.fixture(scope="module")
def trained(home: Path) -> Path:
    """Three steps, each with an evaluation and a checkpoint."""
    run = home / "two"
    assert act(home, *TWO, f"run={run}") == 0
    return run


@pytest.fixture(scope="module")
def padded(trained: Path, home: Path) -> Path:
    assert act(home, "action=export", f"run={trained}", "file=padded", "rows=padded") == 0
    return home / "padded"


def judged(program: Program, *words: str) -> dict[str, Any]:
    done = program("action=evaluate", "output=json", *words)
    tree: dict[str, Any] = json.loads(done.stdout)
    return tree


def held_out_ids(run: Path, source: str) -> Tensor:
    """Read the held-out file of a source by its bytes alone."""
    data = Path(json.loads((run / "data.json").read_text())["folder"])
    (record,) = Manifest.from_folder(data).sources[source].held_out
    return torch.from_numpy(np.fromfile(data / record.name, "<u2").astype(np.int64))


def summed_loss(model: Any, ids: Tensor) -> float:
    """Sum minus the log-probabilities of a text that is read in windows, one by one."""
    total = 0.0
    for start in range(0, len(ids) - 1, LENGTH):
        window = ids[start : start + LENGTH + 1]
        with torch.no_grad():
            logits = model(window[None, :-1]).logits[0]
        rows = logits.double().log_softmax(-1)
        total -= float(rows.gather(1, window[1:, None]).sum())
    return total


def test_held_out_losses_equal_those_of_transformers(trained, padded, program):
    found = judged(program, f"run={trained}")["held_out"]
    model = AutoModelForCausalLM.from_pretrained(padded)
    pieces = SentencePieceProcessor(model_file=str(padded / "tokenizer.model"))
    end = pieces.piece_to_id("<eod>")
    for name, figures in found["by_source"].items():
        ids = held_out_ids(trained, name)
        nats = summed_loss(model, ids)
        documents = [text for text in _split(ids[1:].tolist(), end) if text]
        sizes = [len(pieces.decode(text).encode()) for text in documents]
        assert figures["tokens"] == len(ids) - 1
        assert figures["documents"] == len(documents)
        assert figures["bytes"] == sum(sizes)
        assert figures["loss"] == pytest.approx(nats / (len(ids) - 1), rel=FROM_OTHERS)
        assert figures["perplexity"] == pytest.approx(np.exp(figures["loss"]))
        bits = nats / np.log(2) / sum(sizes)
        assert figures["bits_per_byte"] == pytest.approx(bits, rel=FROM_OTHERS)


def _split(ids: list[int], end: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for token in ids:
        if token == end:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def test_every_checkpoint_has_the_loss_that_training_logged(trained, program):
    logged = {one["tokens"]: one for one in entries(trained, "held_out")}
    assert sorted(logged) == [0, 512, 1_024, 1_536]
    for tokens in (512, 1_536):
        tree = judged(program, f"run={trained}", f"at_tokens={tokens}")
        assert tree["tokens_trained"] == tokens
        found = tree["held_out"]
        assert found["mean_over_sources"] == pytest.approx(logged[tokens]["loss"], rel=SAME)
        assert found["logged_in_training"] == logged[tokens]["loss"]
        shares, losses = logged[tokens]["shares"], logged[tokens]["by_source"]
        weighted = sum(share * losses[name] for name, share in shares.items())
        assert logged[tokens]["weighted_loss"] == pytest.approx(weighted, rel=SAME)
        assert found["shares"] == shares
        assert found["weighted_as_mixture"] == pytest.approx(weighted, rel=SAME)
        for name, loss in losses.items():
            assert found["by_source"][name]["loss"] == pytest.approx(loss, rel=SAME)


def test_losses_are_weighted_with_the_mixture_of_the_phase(trained: Path) -> None:
    shares = [one["shares"] for one in entries(trained, "held_out")]
    early = {"de": 0.4, "hr": 0.3, "sl": 0.3}
    assert shares == [early, early, early, {"de": 0.9, "hr": 0.0, "sl": 0.1}]
    held_out = json.loads((trained / "results.json").read_text())["held_out"]
    assert (held_out["step"], held_out["tokens"], held_out["shares"]) == (3, 1_536, shares[-1])
    assert held_out["final"] == entries(trained, "held_out")[-1]["weighted_loss"]
    assert held_out["final_unweighted"] == entries(trained, "held_out")[-1]["loss"]


def test_sources_of_a_language_add_up_and_all_count_every_token(trained, program):
    found = judged(program, f"run={trained}")["held_out"]
    sources = found["by_source"]
    both = [sources["hr"], sources["sl"]]
    language = found["by_language"]["hr"]
    assert found["by_language"]["de"] == sources["de"]
    for name in ("tokens", "bytes", "documents"):
        assert language[name] == sum(one[name] for one in both)
        assert found["all"][name] == language[name] + sources["de"][name]
    weighted = sum(one["loss"] * one["tokens"] for one in both) / language["tokens"]
    assert language["loss"] == pytest.approx(weighted)


def test_fewer_windows_are_read_on_request(trained: Path, program: Program) -> None:
    words = (f"run={trained}", "evaluation.max_windows_per_source=2")
    found = judged(program, *words)["held_out"]
    assert {one["tokens"] for one in found["by_source"].values()} == {2 * LENGTH}


def test_own_text_is_evaluated_completely_and_saved(trained, padded, program, home):
    texts = ["Ein Pfund Mehl, 2 Eier.", "Dvije žlice šećera " * 40]
    lines = [json.dumps({"text": text}) for text in texts]
    (home / "own.jsonl").write_text("\n".join(lines) + "\n")
    judged(program, f"run={trained}")
    tree = judged(program, f"run={trained}", "text=own.jsonl")
    figures = tree["texts"]["own.jsonl"]
    assert "held_out" in tree
    assert tree == json.loads(
        (trained / "evaluation" / f"{tree['checkpoint']}.json").read_text()
    )
    pieces = SentencePieceProcessor(model_file=str(padded / "tokenizer.model"))
    end = pieces.piece_to_id("<eod>")
    ids = torch.tensor([token for text in texts for token in (*pieces.encode(text), end)])
    nats = summed_loss(AutoModelForCausalLM.from_pretrained(padded), ids)
    first = len(pieces.decode([int(ids[0])]).encode())  # read, never predicted
    assert figures["documents"] == 2
    assert figures["bytes"] == sum(len(text.encode()) for text in texts) - first
    assert figures["loss"] == pytest.approx(nats / (len(ids) - 1), rel=FROM_OTHERS)


def test_table_and_report_show_the_evaluation(trained: Path, program: Program) -> None:
    said = program("action=evaluate", f"run={trained}").stdout
    assert "language hr" in said
    assert "training logged" in said
    page = (trained / "report.html").read_text()
    assert "<h2>Evaluated</h2>" in page
    assert "all held-out tokens" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "run: a run is required"),
        (("run=nowhere",), "run: nowhere is not a run folder"),
        (("run=two", "at_tokens=7"), "at_tokens: no checkpoint at 7 tokens in .*\n.*512"),
        (("run=two", "precision.compute=half"), "precision.compute: "),
        (("run=two", "text=none.txt"), "text: no file matches none.txt"),
        (
            ("run=two", "text=padded/model.safetensors"),
            "text: padded/model.safetensors ends with none of",
        ),
        (("run=two", "tasks_folder=x"), "tasks_folder: tasks_folder requires tasks"),
        (("file=padded",), "file: an exported folder supports only tasks"),
    ],
)
def test_an_invalid_evaluation_is_refused(words, message, padded, home, monkeypatch):
    monkeypatch.chdir(home)
    with pytest.raises(RecipeError, match=message):
        evaluate.run(read_point(["action=evaluate", *words]))


def test_changed_data_are_refused(trained, home, monkeypatch):
    kept = (trained / "data.json").read_text()
    (trained / "data.json").write_text(json.dumps(json.loads(kept) | {"key": "another"}))
    monkeypatch.chdir(home)
    try:
        with pytest.raises(RecipeError, match="the run read another"):
            evaluate.run(read_point(["action=evaluate", f"run={trained}"]))
    finally:
        (trained / "data.json").write_text(kept)
