"""What ranks read of a run's history when they start, and that a part of it is enough."""

import json
import sys
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from components.checkpoint.metadata import RunProgress
from components.config.schema.monitoring import Watchdog
from components.run.event_log import EventLog
from components.run.folder import RunFolder
from components.train.callbacks import lifecycle, watchdog
from components.train.callbacks.lifecycle import LifecycleLogger
from components.train.callbacks.run_metrics import RunMetrics
from components.train.callbacks.watchdog import WatchdogCallback, watch_for_hangs
from components.train.held_out import Evaluation, summarize_held_out
from components.train.loggers import MetricsFile, recent_speeds

RANKS = 512
TRAINER: Any = None  # which these hooks do not ask
OPENED: list[str] = []
IS_RECORDING = [False]


def note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if IS_RECORDING[0] and event in {"open", "os.listdir", "os.scandir"}:
        OPENED.append(str(arguments[0]))


def step_line(step: int, **more: Any) -> dict[str, Any]:
    figures = {"loss": 2.0, "seconds": 0.5, "tokens_per_second": float(step)}
    place = {"kind": "step", "time": float(step), "step": step, "tokens": step * 10}
    return place | figures | more


def held_out_line(step: int, loss: float) -> dict[str, Any]:
    figures = {"loss": loss, "by_source": {"eu": loss}, "seconds": 1.0}
    return {
        "kind": "held_out",
        "time": float(step),
        "step": step,
        "tokens": step * 10,
    } | figures


def energy_line(step: int) -> dict[str, Any]:
    counted = {"joules": float(step), "counted_seconds": 1.0, "passed_seconds": 1.0}
    place = {"kind": "energy", "time": float(step), "step": step, "tokens": step * 10}
    return place | {"devices": counted, "hosts": counted}


def make_metrics(folder: Path, rank: int) -> RunMetrics:
    file = folder / "metrics.jsonl"
    return RunMetrics(file=MetricsFile(file=file, writes=rank == 0, retry_seconds=0.0))


def module_at(step: int) -> Any:
    recipe = SimpleNamespace(cluster=SimpleNamespace(ranks=RANKS))
    return SimpleNamespace(
        progress=RunProgress(step, step * 10),
        recipe=recipe,
        engine=SimpleNamespace(),
        device=SimpleNamespace(type="cpu"),
    )


def write(folder: Path, lines: list[dict[str, Any]]) -> Path:
    file = folder / "metrics.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


def start(folder: Path, rank: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Start what reads or writes the run folder on a rank; return what it opened there."""
    run = RunFolder(folder)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(watchdog, "rank_here", lambda: rank)
    OPENED.clear()
    IS_RECORDING[0] = True
    settings = Watchdog.model_construct(
        collectives=10, pause_seconds=60.0, memory_growth_fraction=0.2
    )
    hang = watch_for_hangs(run, settings, ranks=RANKS)
    metrics = make_metrics(folder, rank)
    event_log = EventLog(file=run.events, writes=rank == 0, retry_seconds=0.0)
    loaded = dict[str, Any]
    said = list[str]().append
    for callback in (
        WatchdogCallback(
            settings=settings, expect=hang.watch_work, folder=run, event_log=event_log, say=said
        ),
        LifecycleLogger(folder=run, event_log=event_log, began=0.0, loaded=loaded),
        metrics,
    ):
        callback.on_train_start(TRAINER, module_at(400))
    hang.stop_watching()
    IS_RECORDING[0] = False
    return [name for name in OPENED if name.startswith(str(folder))]


def test_only_the_first_of_512_ranks_opens_the_history(tmp_path, monkeypatch):
    sys.addaudithook(note_opened)
    monkeypatch.setattr(lifecycle, "gather_results", lambda task: [task()])
    monkeypatch.setattr(lifecycle, "emulation_of", lambda *words: None)
    write(tmp_path, [held_out_line(0, 5.0), *map(step_line, range(1, 400)), energy_line(400)])
    (tmp_path / "events.jsonl").write_text("")
    (tmp_path / "ranks").mkdir()
    by_rank = {rank: start(tmp_path, rank, monkeypatch) for rank in range(RANKS)}
    assert {Path(name).name for name in by_rank.pop(0)} >= {"metrics.jsonl", "events.jsonl"}
    assert {rank: opened for rank, opened in by_rank.items() if opened} == {}


@pytest.mark.parametrize("seed", range(30))
def test_a_part_of_the_history_gives_the_same_summary(tmp_path, seed: int) -> None:
    """Runs go back to earlier steps, and take them again with other losses."""
    random, step, lines = Random(seed), 0, [held_out_line(0, 9.0)]
    for number in count(1):
        step += 1
        lines.append(step_line(step))
        lines += [held_out_line(step, random.random())] * (step % 4 == 0)
        lines += [energy_line(number)] * (number % 5 == 0)
        if random.random() < 0.02 and number <= 300:
            step = random.randrange(step)
        if number > 330:
            break
    write(tmp_path, lines)
    every = {
        one["step"]: Evaluation(one["step"], one["tokens"], one["by_source"])
        for one in lines
        if one["kind"] == "held_out" and one["step"] <= step - seed
    }
    metrics = make_metrics(tmp_path, 0)
    # As after the loss of later checkpoints.
    metrics.on_train_start(TRAINER, module_at(step - seed))
    expected = summarize_held_out([every[one] for one in sorted(every)], {"eu": 1.0}, {})
    assert summarize_held_out(metrics.evaluations, {"eu": 1.0}, {}) == expected
    energies = [one["devices"]["joules"] for one in lines if one["kind"] == "energy"]
    assert metrics.energy_used["devices"].joules == energies[-1]
    assert make_metrics(tmp_path, 1).energy_used["devices"].joules == 0


def test_only_the_ends_of_a_large_history_are_read(tmp_path: Path) -> None:
    """Between them is a hole of 3 GiB, which is longer than any line may be."""
    file = write(tmp_path, [held_out_line(0, 9.0), *map(step_line, range(1, 700))])
    with file.open("r+b") as stream:
        stream.seek(3 << 30)
        late = [step_line(step) for step in range(700, 20_700)]
        lines = [*late, held_out_line(20_699, 4.0), energy_line(20_699)]
        stream.write(b"".join(b"\n" + json.dumps(one).encode() for one in lines))
    metrics = make_metrics(tmp_path, 0)
    metrics.on_train_start(TRAINER, module_at(20_699))
    assert [one.step for one in metrics.evaluations] == [0, 20_699]
    assert metrics.energy_used["devices"].joules == 20_699
    speeds = recent_speeds(file, after_step=1)
    assert speeds == [float(step) for step in range(20_699, 10_699, -1)]
    assert recent_speeds(file, after_step=20_690) == speeds[:9]
