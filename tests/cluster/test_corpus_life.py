"""Arrays on a real Slurm: a corpus prepared, on Ray too, and checkpoints evaluated."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.slurm import Slurm
from command.evaluate.queue import EvaluationArray, array_folder
from command.evaluate.queue import read_array as read_evaluation_array
from command.main import main
from components.run.folder import RunFolder
from data_prep.task import read_array
from tests.cluster.programs import Capture, Patch
from tests.cluster.slurm import LocalSlurm
from tests.cluster.test_slurm_life import HERE, SMALL, Submit, finish, submit
from tests.data_prep.corpora import LANGUAGES, write_corpus
from tests.life.conftest import command, environment

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600)]


@pytest.fixture
def words(tmp_path: Path, slurm: LocalSlurm, monkeypatch: Patch) -> list[str]:
    """The words of a command that prepares a corpus in three languages on the cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    write_corpus(tmp_path / "texts")
    sources = {name: {"files": [f"{tmp_path}/texts/{name}*"]} for name in LANGUAGES}
    own = [word for word in SMALL if not word.startswith("data.")]
    return [
        *own,
        *(word for word in HERE if not word.startswith("cluster.site.binding")),
        *("cluster.site.binding.cores_per_rank=2", "action=prepare"),
        *("cluster.nodes=2", "cluster.hours=0.2"),
        f"site.venv={sys.prefix}",
        f"data.sources={sources}".replace("'", ""),
        "data.shares={de: 0.4, en: 0.3, fr: 0.3}",
        *("preparation=engine", "data.preparation.shard_bytes=2_000"),
        "data.preparation.exact_duplicates={unit: document}",
        *("data.preparation.most_jobs=3", "data.preparation.workers=1"),
    ]


SLURM = "data.preparation.executor=array"
ELEMENTS = {"clean": 3, "duplicates": 1, "keep": 3, "tokenizer": 1, "tokens": 3}


def prepared(capsys: Capture) -> str:
    return Path(capsys.readouterr().out.splitlines()[-1]).name


def passes(folder: Path, name: str) -> list[Path]:
    return sorted((folder / "prepared" / "stages").glob(f"{name}-*"))


def test_queue_gives_the_same_bytes(words: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert main([*words, SLURM]) == 0
    queued = prepared(capsys)
    for name, elements in ELEMENTS.items():
        (folder,) = passes(tmp_path, name)
        array = read_array(folder)
        assert array is not None
        assert len(array.groups) == elements
        assert len(list((folder / "jobs").glob(f"{array.job}_*.log"))) == elements
    assert main([*words, "data.folder=here"]) == 0
    assert prepared(capsys) == queued
    manifests = [(tmp_path / root / queued / "manifest.json") for root in ("prepared", "here")]
    assert manifests[0].read_bytes() == manifests[1].read_bytes()


@pytest.mark.long
def test_ray_gives_the_same_bytes(words: list[str], tmp_path: Path, capsys: Capture) -> None:
    rayed = [*words, "data.preparation.executor=ray", "data.folder=rayed"]
    done = subprocess.run(
        command(*rayed),
        env=environment() | {"RAY_AUTH_MODE": "disabled"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert main([*words, "data.folder=here"]) == 0
    name = prepared(capsys)
    assert name == Path(done.stdout.splitlines()[-1]).name
    manifests = [(tmp_path / root / name / "manifest.json") for root in ("rayed", "here")]
    assert manifests[0].read_bytes() == manifests[1].read_bytes()


def test_killed_command_finds_its_array_and_submits_lost_elements_again(
    words: list[str], tmp_path: Path, slurm: LocalSlurm, capsys: Capture
) -> None:
    for node in slurm.nodes:  # nothing starts yet
        slurm.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    with subprocess.Popen(
        command(*words, SLURM),
        env=environment(),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        assert any("submitted" in line for line in process.stderr)
        process.send_signal(signal.SIGKILL)
    (folder,) = passes(tmp_path, "clean")
    first = read_array(folder)
    assert first is not None
    slurm.call("scancel", f"{first.job}_1")
    for node in slurm.nodes:
        slurm.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
    assert main([*words, SLURM]) == 2
    stderr = capsys.readouterr().err
    assert f"{first.job} is already queued" in stderr
    assert "tasks ended without a result" in stderr
    assert main([*words, SLURM]) == 0
    again = read_array(folder)
    assert again is not None
    assert again.job != first.job
    assert sorted(task for group in again.groups for task in group) == sorted(first.groups[1])


def test_error_of_an_element_is_reported(words, tmp_path, capsys):
    (tmp_path / "texts" / "en1.jsonl").write_text('{"tekst": "x"}\n')
    assert main([*words, SLURM]) == 2
    stderr = capsys.readouterr().err
    assert "data.sources.en.files: " in stderr
    assert "en1.jsonl:1 line 1 has no text" in stderr


__all__ = ["submit"]

TOKENS = [1_024, 2_048, 3_072]


@pytest.fixture
def trained(slurm: LocalSlurm, submit: Submit) -> Path:
    """A run of one node that kept three checkpoints."""
    words = ("budget.total_tokens=3_072", "checkpoint.every_tokens=1_024")
    kept = ("checkpoint.keep_every_tokens=1_024", "cluster.nodes=1", "parallelism.data=4")
    run = submit("evaluated", *words, *kept)
    assert finish(slurm, run).state == "finished"
    return run


def ask(run: Path, capsys: Capture) -> tuple[list[Any], str]:
    """Ask for all checkpoints in jobs; return the answers that there are, and the words."""
    words = ["action=evaluate", f"run={run}", "checkpoints=all", "executor=array"]
    own = ["site.account=kitchen", "cluster.hours=0.1", "output=json"]
    capsys.readouterr()
    assert main([*words, *own]) == 0
    said = capsys.readouterr()
    return json.loads(said.out)["checkpoints"], said.err


def submitted(run: Path) -> tuple[str, EvaluationArray]:
    array = read_evaluation_array(array_folder(RunFolder(run)))
    assert array is not None
    assert array.job is not None
    return array.job, array


def test_checkpoints_are_evaluated_once(trained, slurm, capsys):
    for node in slurm.nodes:  # nothing starts yet
        slurm.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    found, said = ask(trained, capsys)
    job, array = submitted(trained)
    assert found == []
    assert f"evaluated 0 of 3 checkpoints; submitted {job}" in said
    assert array.groups == [[tokens] for tokens in TOKENS]
    _, said = ask(trained, capsys)
    assert "evaluated 0 of 3 checkpoints; 0 jobs running, 3 queued" in said
    slurm.call("scancel", f"{job}_1")
    for node in slurm.nodes:
        slurm.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
    logs = array_folder(RunFolder(trained)) / "jobs"
    slurm.wait_for(lambda: not Slurm().list_jobs(job, logs), 200)
    found, said = ask(trained, capsys)
    assert [one["tokens_trained"] for one in found] == [TOKENS[0], TOKENS[2]]
    assert "evaluated 2 of 3 checkpoints; submitted" in said
    again, array = submitted(trained)
    assert array.groups == [[TOKENS[1]]]
    slurm.wait_for(lambda: not Slurm().list_jobs(again, logs), 200)
    found, said = ask(trained, capsys)
    assert [one["tokens_trained"] for one in found] == TOKENS
    for one in found:
        logged = one["held_out"]["logged_in_training"]
        assert one["held_out"]["weighted_as_mixture"] == pytest.approx(logged, rel=1e-6)
