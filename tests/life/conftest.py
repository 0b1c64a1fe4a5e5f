"""Runs of the real program in a folder of their own, on a miniature of the miniature."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from command.main import main
from components.run.history import log_files, read_lines

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    "recipe=teuken7b",
    "model.dim=32",
    "model.num_layers=2",
    "model.attention.head_dim=8",
    "model.mlp.ffn_dim=64",
    "tokenizer.vocab_size=768",
    f"data.sources={{eu: {{files: ['{ROOT}/corpora/eu24/*.txt']}}}}",
    "data.shares={eu: 1.0}",
    "data.held_out_fraction=0.05",
    "budget.sequence_length=64",
    "budget.global_batch_tokens=512",
    "parallelism.microbatch_sequences=4",
    "budget.total_tokens=12_288",
    "checkpoint.every_tokens=3_072",
    "evaluation.every_tokens=6_144",
)


def tiny(*words: str) -> list[str]:
    """The miniature's words with these over them, each key once."""
    return list({word.partition("=")[0]: word for word in (*TINY, *words)}.values())


Program = Callable[..., subprocess.CompletedProcess[str]]


def command(*words: str) -> list[str]:
    return [sys.executable, str(ROOT / "run.py"), *words]


def environment() -> dict[str, str]:
    """One thread: two ranks share two cores, and sums keep one order."""
    return os.environ | {"OMP_NUM_THREADS": "1"}


def records(run: Path) -> list[dict[str, Any]]:
    """Read what a run measured and what befell it, in the order of time."""
    return sorted(
        (one for file in log_files(run) for one in read_lines(file)), key=lambda r: r["time"]
    )


def entries(run: Path, kind: str) -> list[dict[str, Any]]:
    return [one for one in records(run) if one["kind"] == kind]


def column(run: Path, key: str, kind: str = "step") -> list[Any]:
    return [one[key] for one in entries(run, kind)]


def saved(run: Path, tokens: int | None = None) -> dict[str, torch.Tensor]:
    """Read weights and optimizer of a checkpoint, by default the newest."""
    return {key.partition(" ")[2]: tensor for key, tensor in _by_file(run, tokens).items()}


def check_same_bits(run: Path, other: Path, tokens: int | None = None) -> None:
    """Check that both runs have saved the same: weights, masters and moments of each rank."""
    found, expected = _by_file(run, tokens), _by_file(other, tokens)
    assert found.keys() == expected.keys()
    assert any("optimizer.state." in name for name in expected)
    assert [name for name in expected if not found[name].equal(expected[name])] == []


def _by_file(run: Path, tokens: int | None) -> dict[str, torch.Tensor]:
    name = "tokens-*" if tokens is None else f"tokens-{tokens:015d}"
    return {
        f"{file.name} {name}": tensor
        for file in max((run / "checkpoints").glob(name)).glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }


def forget_the_end(run: Path) -> Path:
    """Leave of a finished run what a kill before its last checkpoint leaves."""
    shutil.rmtree(max((run / "checkpoints").glob("tokens-*")))
    (run / "results.json").unlink()
    return run


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder shared by a file's tests, so that data is prepared once."""
    return tmp_path_factory.mktemp("home")


def act(home: Path, *words: str) -> int:
    """Run the command in this process: one of its own would spend its time on imports."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with contextlib.chdir(home):
            return main(words)
    finally:
        torch.set_num_threads(threads)


@pytest.fixture
def program(home: Path, capfd: pytest.CaptureFixture[str]) -> Program:
    """Act, and keep what this process and its ranks said."""

    def call(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        code = act(home, *words)
        said = capfd.readouterr()
        assert code == status, said.err[-4000:]
        return subprocess.CompletedProcess(words, code, said.out, said.err)

    return call
