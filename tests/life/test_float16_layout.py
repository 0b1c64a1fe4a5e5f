"""Dynamic loss scaling when the model is split: all ranks skip the same steps."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.life.conftest import TINY, Program

pytestmark = pytest.mark.long

# Far above what float16 gradients bear, so that the first steps overflow somewhere.
FLOAT16 = (
    "precision=fp16",
    "precision.compute=float16",
    "precision.loss_scale.initial=134_217_728",
    "precision.loss_scale.hysteresis=1",
    "budget.total_tokens=4_096",
    # One process adds the two uses of a tied weight up in float16, stages in float32.
    "model.tied_embeddings=false",
)


def steps(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == "step"]


def test_stages_skip_the_steps_that_one_process_skips(home: Path, program: Program) -> None:
    words = [word for word in TINY if not word.startswith("budget.total_tokens")]
    runs = {1: home / "alone", 2: home / "split"}
    for stages, run in runs.items():
        program(*words, *FLOAT16, f"parallelism.pipeline={stages}", f"run={run}")
    alone, split = (steps(run) for run in runs.values())
    scales = [step["loss_scale"] for step in alone]
    assert len(set(scales)) > 1
    assert [step["loss_scale"] for step in split] == scales
    assert [step["loss"] for step in split] == pytest.approx(
        [step["loss"] for step in alone], rel=2e-3
    )
