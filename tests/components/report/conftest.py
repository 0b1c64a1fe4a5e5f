"""Run folders written by hand, as a run writes them."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from components.report.page import write_report
from tests.components.report.outline import Outline

WriteRun = Callable[..., Path]
Counted = tuple[float | None, float, float]

TOKENS_PER_STEP = 8192
SOURCES = ("de", "en", "fi", "mt", "python")


def recipe_tree() -> dict[str, Any]:
    return {
        "name": "walnut7b",
        "description": "Does a wide cake rise as well as a deep one?",
        "reference_cluster": "booster",
        "model": {
            "_target_": "components.model.decoder.Decoder",
            "num_layers": 4, "num_heads": 8, "num_kv_heads": 2, "dim": 128, "ffn_dim": 420,
            "vocab_size": 4096, "rope": {"base": 10000.0},
        },
        "data": {"shares": {"de": 0.3, "en": 0.3, "fi": 0.2, "mt": 0.1, "python": 0.1}},
        "budget": {
            "total_tokens": 60 * TOKENS_PER_STEP, "global_batch_tokens": TOKENS_PER_STEP,
            "sequence_length": 256, "seed": 42,
        },
        "optimizer": {"lr": 3e-05, "betas": [0.9, 0.95]},
        "parallelism": {"data": 2, "tensor": 2, "pipeline": 1},
        "published": {
            "parameters": {"value": 7_452_725_248, "unit": "parameters", "source": "card"},
            "time.step_seconds": {"value": 12.5, "unit": "s", "source": "table 3"},
            "energy": {"value": {"node": 2.5, "total": 600}, "unit": "MWh", "source": "press"},
        },
        "assumed": {"schedule.warmup_tokens": {"value": 2_000_000, "reason": "no source says"}},
        "cluster": {"name": "workbench"},
        "scale": {"name": "small", "shrink": {"dim": 128}},
    }  # fmt: skip


def derived_tree() -> dict[str, Any]:
    return {
        "parameters": {
            "total": 1_234_567, "active": 1_234_567, "embedding": 524_288, "expert": 0,
            "padding": 0,
        },
        "tokens_per_step": TOKENS_PER_STEP, "steps": 60, "ranks": 4,
        "flops_per_token": {"full": 8_000_000, "causal": 7_600_000},
    }  # fmt: skip


def environment_tree() -> dict[str, Any]:
    return {
        "command": ["python", "run.py", "recipe=walnut7b", "name=two words"],
        "started": "2026-01-02T03:04:05+00:00", "commit": "0123abc", "dirty": True,
        "python": "3.11.9", "versions": {"torch": "2.13.0", "lightning": "2.6.6"},
        "device": "cpu", "host_threads": 2,
    }  # fmt: skip


def loss_at(step: int) -> float:
    return 2.0 + 6.3 * math.exp(-step / 15)


def step_line(step: int, **changed: float) -> dict[str, Any]:
    line = {
        "kind": "step", "step": step, "tokens": step * TOKENS_PER_STEP, "loss": loss_at(step),
        "auxiliary_loss": 0.0, "expert_load": 1.0, "lr": 3e-4 * min(1, step / 10),
        "gradient_norm": 1 + 3 / step, "loss_scale": 1.0, "seconds": 0.5,
        "tokens_per_second": 2 * TOKENS_PER_STEP,
    }  # fmt: skip
    return line | changed


def held_out_line(step: int) -> dict[str, Any]:
    by_source = {name: loss_at(step) + 0.3 * place for place, name in enumerate(SOURCES)}
    return {
        "kind": "held_out", "step": step, "tokens": step * TOKENS_PER_STEP,
        "loss": loss_at(step) + 0.6, "weighted_loss": loss_at(step) + 0.42,
        "by_source": by_source, "shares": recipe_tree()["data"]["shares"], "seconds": 0.1,
    }  # fmt: skip


def of_an_earlier_version(line: dict[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in line.items() if key not in {"weighted_loss", "shares"}}


def energy_line(step: int, *, devices: Counted, hosts: Counted) -> dict[str, Any]:
    """Write joules, the seconds that were counted and those that passed, so far."""
    names = ("joules", "counted_seconds", "passed_seconds")
    return {
        "kind": "energy", "step": step, "tokens": step * TOKENS_PER_STEP,
        "devices": dict(zip(names, devices, strict=True)),
        "hosts": dict(zip(names, hosts, strict=True)),
    }  # fmt: skip


def mark_line(kind: str, step: int, **evidence: Any) -> dict[str, Any]:
    return {
        "kind": kind, "step": step, "tokens": step * TOKENS_PER_STEP, "cause": "due",
        "seconds": 0.25, "evidence": evidence,
    }  # fmt: skip


def write_history(folder: Path, lines: Sequence[dict[str, Any]], tail: str = "") -> None:
    """Deal the lines to the two files, a second apart; ``tail`` ends the measurements."""
    texts = {"metrics.jsonl": "", "events.jsonl": ""}
    for time, line in enumerate(lines):
        measured = line["kind"] in {"step", "held_out", "energy"}
        name = "metrics.jsonl" if measured else "events.jsonl"
        texts[name] += json.dumps({"time": float(time), **line}) + "\n"
    texts["metrics.jsonl"] += tail
    for name, text in texts.items():
        (folder / name).write_text(text)


def results_tree(steps: int) -> dict[str, Any]:
    rate = 2 * TOKENS_PER_STEP
    return {
        "status": "finished", "recipe": "walnut7b", "scale": "mini", "fingerprint": "f00d",
        "steps": steps, "tokens": steps * TOKENS_PER_STEP, "seconds": steps * 0.5,
        "tokens_per_second": rate, "tokens_per_second_per_device": rate / 4,
        "flops_per_second": {"full": 8e6 * rate, "causal": 7.6e6 * rate}, "device": "cpu",
        "held_out": {
            "step": steps, "tokens": steps * TOKENS_PER_STEP,
            "first": loss_at(0) + 0.42, "first_unweighted": loss_at(0) + 0.6,
            "final": loss_at(steps) + 0.42, "final_unweighted": loss_at(steps) + 0.6,
            "by_source": held_out_line(steps)["by_source"],
            "shares": held_out_line(steps)["shares"],
            "unigram": 6.543, "unigram_unweighted": 6.6,
            "unigram_by_source": {name: 6.2 + 0.2 * i for i, name in enumerate(SOURCES)},
            "slope_last_quarter": -1e-6, "rising": False,
        },
    }  # fmt: skip


def earlier_results_tree(steps: int, **changed: Any) -> dict[str, Any]:
    """Write results as earlier versions did, which had plain means alone."""
    held_out = {
        "first": loss_at(0) + 0.6, "final": loss_at(steps) + 0.6,
        "by_source": held_out_line(steps)["by_source"], "unigram": 6.6,
        "unigram_by_source": {name: 6.2 + 0.2 * i for i, name in enumerate(SOURCES)},
        "slope_last_quarter": -1e-6, "rising": False,
    }  # fmt: skip
    return results_tree(steps) | {"held_out": held_out | changed}


def history_lines(steps: int) -> list[dict[str, Any]]:
    lines = [held_out_line(0)]
    for step in range(1, steps + 1):
        lines.append(step_line(step))
        if step % 10 == 0:
            lines.append(held_out_line(step))
        if step % 20 == 0:
            lines.append(mark_line("checkpoint", step, folder=f"checkpoint-{step}"))
    return lines


def read_report(runs: Sequence[Path], folder: Path) -> Outline:
    """Write the report of these runs without the library of charts, and read it."""
    page = write_report(runs, folder / "report.html", script="plotly.js")
    return Outline(page.read_text("utf-8"))


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Give a function that writes a run folder; each argument replaces one of its files."""

    def write(
        name: str = "run",
        *,
        recipe: dict[str, Any] | None = None,
        results: dict[str, Any] | None = None,
        killed: bool = False,
        lines: Sequence[dict[str, Any]] | None = None,
        tail: str = "",
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        files = {
            "recipe": recipe or recipe_tree(), "derived": derived_tree(),
            "environment": environment_tree(), "results": results or results_tree(60),
        }  # fmt: skip
        for name, tree in files.items():
            if name != "results" or not killed:
                (folder / f"{name}.json").write_text(json.dumps(tree))
        write_history(folder, history_lines(60) if lines is None else lines, tail)
        return folder

    return write
