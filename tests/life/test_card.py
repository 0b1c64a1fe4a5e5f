"""Two processes on this machine measure it, restart from a checkpoint, and write a card."""

import json
import os
import socket
from pathlib import Path

import pytest

from command.card.request import RESTART_STEPS, STEPS
from command.main import main
from components.run.history import read_lines
from components.run.site_card import CPU, FIGURES, read_card
from tests.life.conftest import TINY

OWN = ("budget.total_tokens", "checkpoint.", "evaluation.", "data.", "parallelism.")
SMALL = tuple(word for word in TINY if not word.startswith(OWN))


@pytest.mark.long
def test_two_processes_make_a_card_of_this_machine(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = tmp_path / "run"
    words = (*SMALL, "cluster.ranks=2", "card=true", f"run={run}")
    assert main(["action=train", *words]) == 0
    assert f"card: {run / 'card.json'}" in capfd.readouterr().out
    events = read_lines(run / "events.jsonl")
    (resumed,) = (event for event in events if event["kind"] == "resume")
    assert resumed["step"] == STEPS
    assert events[-1]["step"] == STEPS + RESTART_STEPS

    card = read_card(run / "card.json", "file")
    assert card.notice == CPU
    assert {figure.name for figure in card.figures} == set(FIGURES)
    groups = {(f.name, f.nodes, f.ranks, f.bytes) for f in card.figures if f.ranks}
    sizes = [1 << 16, 1 << 20, 1 << 24]
    assert groups == {
        ("latency", 1, 2, 4),
        *((name, 1, 2, size) for name in ("all_reduce", "all_gather") for size in sizes),
    }
    assert all(figure.value > 0 for figure in card.iter_figures("all_reduce"))
    text = (run / "card.json").read_text()
    assert len(text) < 8_192
    for private in (socket.gethostname(), str(tmp_path), str(Path.home()), os.path.sep):
        assert private not in json.loads(text)["run"].values()
        assert private not in text.replace("GB/s", "").replace("FLOP/s", "").replace(
            "(n - 1) / n", ""
        )

    assert main(["action=verify", f"file={run / 'card.json'}"]) == 0
    assert "intact: measured on CPUs" in capfd.readouterr().out
