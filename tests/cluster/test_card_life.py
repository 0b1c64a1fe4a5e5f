"""A site card of two nodes of a real Slurm: one job measures, restarts and writes the card."""

import contextlib
import json
from pathlib import Path

import pytest

from cluster.records import Jobs
from cluster.slurm import Slurm
from cluster.status import status_of
from command.main import main
from components.run.folder import RunFolder
from components.run.history import read_lines
from components.run.site_card import read_card
from tests.cluster.conftest import HERE
from tests.cluster.programs import Capture, Patch
from tests.cluster.slurm import LocalSlurm
from tests.life.conftest import TINY

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_800)]

OWN = ("budget.total_tokens", "budget.global", "checkpoint.", "evaluation.", "data.")
SMALL = tuple(word for word in TINY if not word.startswith(OWN))
WORDS = (
    *(word for word in HERE if not word.startswith(("cluster.hours", "cluster.nodes"))),
    "cluster.preflight.product_fraction=0.01",  # the nodes share this host's cores
)


def test_one_job_of_two_nodes_makes_a_card_that_plans_read(
    slurm: LocalSlurm, home: Path, tmp_path: Path, monkeypatch: Patch, capfd: Capture
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = tmp_path / "run"
    with contextlib.chdir(home):
        assert main(["action=submit", *SMALL, *WORDS, "card=true", f"run={run}"]) == 0
    assert f"card: {run / 'card.json'}" in capfd.readouterr().out

    def has_ended() -> bool:
        return status_of(run, Slurm()).state in {"finished", "failed", "lost"}

    slurm.wait_for(has_ended, 1_200)
    assert status_of(run, Slurm()).state == "finished"
    first, second = Jobs(RunFolder(run)).load_chain().attempts
    assert first.job == second.job  # the restart is in the same job
    kinds = [event["kind"] for event in read_lines(run / "events.jsonl")]
    assert kinds.count("preflight") == 2
    assert [kind for kind in kinds if kind in {"start", "restart", "resume", "end"}] == [
        *("start", "restart", "resume", "end")
    ]

    card = read_card(run / "card.json", "file")
    assert (card.run.cluster, card.run.sizes.nodes, card.machine.kind) == ("juwels", 2, "cpu")
    assert {figure.nodes for figure in card.iter_figures("all_reduce")} == {2}
    assert (card.find_value("preflight") or 0) > 0
    text = (run / "card.json").read_text()
    assert not any(node in text for node in (*first.nodes, str(run), str(Path.home())))

    assert main(["action=verify", f"file={run / 'card.json'}"]) == 0
    assert "intact: measured on CPUs" in capfd.readouterr().out
    calibrate = ("action=plan", f"calibrate={run / 'card.json'}", "output=json")
    assert main([*calibrate]) == 0
    told = capfd.readouterr()
    assert json.loads(told.out)["cluster"] == "juwels"
    assert "the plan is unchanged: juwels has cuda devices" in told.err

    (run / "card.json").write_text(text.replace('"cpu"', '"cuda"'))
    for words in (["action=verify", f"file={run / 'card.json'}"], [*calibrate]):
        assert main(words) == 2
        assert "was edited or damaged" in capfd.readouterr().err
