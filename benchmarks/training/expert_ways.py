"""What do grouped experts and an expert-aware optimizer (EPSO) gain in runs of the command?

A miniature of two expert ranks trains by `run.py` in four ways, in turns: experts in a loop or
grouped, the dense weights' state and update repeated on each expert rank or divided among them.
A run's rate is that of its median step, its memory the first rank's resident peak. It has the
published model's kind of routing, many small experts of which a token meets eight. The paper
has the same four ways (https://arxiv.org/abs/2604.00785, table 3); its loop is Hugging Face's.

    python -m benchmarks.training.expert_ways recipe=NAME
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.ratios import Ratio, interval, keep_result, paired_ratio
from benchmarks.training.whole_run import own_words, train_by_command

ROUNDS, STEPS, WARM_STEPS = 6, 7, 2
PLAIN = "loop, plain"
WAYS = {
    f"{path}, {told_so}": (f"model.mlp.path={path}", f"parallelism.expert_aware={aware}")
    for path in ("loop", "grouped")
    for told_so, aware in (("plain", "false"), ("aware", "true"))
}
SHAPE = (
    *("scale=mini", "cluster.ranks=2", "parallelism.data=1", "parallelism.expert=2"),
    *("parallelism.zero=1", "model.mlp.num_experts=64", "model.mlp.top_k=8"),
)


def train(words: list[str], run: Path) -> tuple[float, float]:
    """Train by the command; return tokens a second of the median step and the peak in bytes."""
    _, steps = train_by_command(words, run)
    rates = [one["tokens_per_second"] for one in steps[WARM_STEPS:]]
    results = json.loads((run / "results.json").read_text("utf-8"))
    return statistics.median(rates), float(results["peak_memory_bytes"])


def in_turns(words: list[str], home: Path) -> dict[str, Any]:
    """Train all ways once a round, each round from another way on."""
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    peaks: dict[str, list[float]] = {way: [] for way in WAYS}
    ways = list(WAYS)
    for number in range(ROUNDS):
        for way in (*ways[number % len(ways) :], *ways[: number % len(ways)]):
            own = [*own_words([*words, *SHAPE], STEPS, home), *WAYS[way]]
            rate, peak = train(own, home / f"{way}-{number}".replace(", ", "-"))
            rates[way].append(rate)
            peaks[way].append(peak)
    middle = {way: statistics.median(values) for way, values in peaks.items()}
    return {
        way: {
            "tokens_per_second": statistics.median(values),
            "peak_bytes": middle[way],
            "speed_up": paired_ratio(values, rates[PLAIN]),
            "memory": middle[way] / middle[PLAIN],
        }
        for way, values in rates.items()
        if way != PLAIN
    }


def ratios_of(ways: dict[str, Any]) -> list[Ratio]:
    """Take the rate and the memory of each way."""
    return [
        ratio
        for way, figures in ways.items()
        for ratio in (
            Ratio(f"{way}, speed", PLAIN, **interval(figures["speed_up"])),
            Ratio(f"{way}, memory", PLAIN, figures["memory"]),
        )
    ]


def main(words: list[str]) -> int:
    """Measure, and keep the result."""
    with tempfile.TemporaryDirectory() as place:
        found: dict[str, Any] = {"ways": in_turns(words, Path(place))}
    found |= circumstances(
        peer="the same run with experts in a loop and the plain optimizer",
        convention="tokens a second of a run's median step, runs of the command in turns, "
        "ratios pair by pair; memory is resident, the interpreter's too",
        shape={"recipe": words, "words": SHAPE, "rounds": ROUNDS, "steps": STEPS},
    )
    return keep_result("expert_ways", found, ratios_of(found["ways"]))


if __name__ == "__main__":
    enter(main)
