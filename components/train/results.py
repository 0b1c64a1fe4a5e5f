"""Results of a run as data, with the graphs that torch's compiler made for it."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np

from components.distributed.devices import peak_memory_bytes
from components.energy.counters import EnergyReading
from components.run.folder import RunFolder
from components.run.history import held_until
from components.run.lines import read_lines
from components.torch_internals.autograd import count_graphs
from components.train.callbacks.hooks import RunCallback
from components.train.callbacks.metrics_logger import Metrics
from components.train.module import Pretraining

_SETTLED = 2  # steps; by then every kind of layer had its batch


class GraphCount(RunCallback):
    """Count this rank's graphs; recompiles are those made after its second step."""

    _steps = _graphs = 0

    def on_step(self, module: Pretraining) -> None:
        self._steps += 1
        if self._steps <= _SETTLED:
            self._graphs = count_graphs()

    @property
    def figures(self) -> dict[str, int]:
        """``graphs`` of the process, and ``recompiles``, those of them that came late."""
        graphs, is_settled = count_graphs(), self._steps > _SETTLED
        return {"graphs": graphs, "recompiles": graphs - self._graphs if is_settled else 0}


def summarize(
    *,
    module: Pretraining,
    metrics: Metrics,
    folder: RunFolder,
    unigram: Mapping[str, float],
    began: float,
    energy_sources: Mapping[str, str],
    compiler: Mapping[str, int],
) -> dict[str, Any]:
    """Collect the figures of ``results.json``; every rate names its FLOP convention.

    ``seconds`` are those of all processes of the run, ``last_process_seconds`` those since
    this one ``began`` (`time.perf_counter`).
    """
    recipe, derived, progress = module.recipe, module.recipe.derived, module.progress
    measured, happened = read_lines(folder.metrics), read_lines(folder.journal)
    drawn = module.batches.drawn_before(progress.step)
    flops = derived.flops_per_token
    # The median over steps alone: the first one warms up, evaluations are not training.
    speeds = [entry["tokens_per_second"] for entry in measured if entry["kind"] == "step"]
    speed = float(np.median(speeds)) if speeds else 0.0
    return strict({
        "status": "finished" if progress.step == derived.steps else "stopped",
        "recipe": recipe.name,
        "scale": recipe.scale.name,
        "fingerprint": recipe.fingerprint(),
        "steps": progress.step,
        "tokens": progress.tokens,
        "loss": module.last.loss if module.last else None,
        "seconds": held_until(time.time(), (*measured, *happened)),
        "last_process_seconds": time.perf_counter() - began,
        "tokens_per_second": speed,
        "tokens_per_second_per_device": speed / derived.ranks,
        "step_seconds": derived.tokens_per_step / speed if speed else None,
        "flops_per_second": {"full": speed * flops.full, "causal": speed * flops.causal},
        "device": str(module.device),
        "peak_memory_bytes": peak_memory_bytes(module.device),  # of the first rank
        "compiler": dict(compiler),  # of the first rank
        "energy": summarize_energy(
            metrics.energy_used, tokens=progress.tokens, sources=energy_sources
        ),
        "mixture": {name: asdict(one) for name, one in drawn.items()},
        "held_out": summarize_held_out(metrics.held_out_losses, unigram),
    })


def strict(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Put null where a number is not finite, which JSON has not, and list the keys."""
    found: list[str] = []

    def finite(node: Any, key: str) -> Any:
        if isinstance(node, Mapping):
            return {name: finite(one, f"{key}.{name}") for name, one in node.items()}
        if isinstance(node, float) and not math.isfinite(node):
            found.append(key.removeprefix("."))
            return None
        return node

    return {**finite(tree, ""), "not_finite": found}


def summarize_held_out(
    losses: list[tuple[int, float, dict[str, float]]], unigram: Mapping[str, float]
) -> dict[str, Any]:
    """Put the held-out losses, in nats a token, beside a smoothed unigram model's.

    ``rising`` asks the least-squares slope over the evaluations of the last quarter of tokens;
    nobody knows where one of them is not finite.
    """
    if not losses:
        return {}
    tokens, means = np.array([entry[:2] for entry in losses], dtype=float).T
    last_quarter = tokens >= 0.75 * tokens[-1]
    slope = 0.0 if np.isfinite(means[last_quarter]).all() else math.nan
    if last_quarter.sum() > 1 and not math.isnan(slope):
        slope = float(np.polyfit(tokens[last_quarter] / 1e6, means[last_quarter], 1)[0])
    return {
        "first": losses[0][1],
        "final": losses[-1][1],
        "by_source": losses[-1][2],
        "unigram": fmean(unigram.values()),
        "unigram_by_source": unigram,
        "slope_last_quarter": slope,
        "slope_unit": "nats a token, per million tokens trained",
        "rising": slope > 0 if math.isfinite(slope) else None,
    }


def summarize_energy(
    used: Mapping[str, EnergyReading], *, tokens: int, sources: Mapping[str, str]
) -> dict[str, Any]:
    """Give what devices and hosts took, in joules and mean watts, and who counted it.

    A token's share is that of the devices, and known only if all of them were always counted.
    """
    devices = used["devices"]
    per_token = devices.joules / tokens if devices.is_whole and tokens else None
    found = {
        name: {
            **one.as_json(),
            "watts": one.watts,
            "counted_fraction": one.fraction,
            "source": sources[name],  # of the first rank
        }
        for name, one in used.items()
    }
    return {**found, "joules_per_token": per_token}
