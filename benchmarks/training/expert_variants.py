"""How much do grouped experts and an expert-aware optimizer (EPSO) speed up a run?

A miniature with two expert ranks trains by `run.py` in four variants, which alternate: experts
in a loop or grouped, with the plain or the expert-aware optimizer. The rate of a run is that of
its median step, its memory the resident peak of the first rank. Like the published model, the
miniature routes each token to eight of many small experts. The paper has the same variants
(https://arxiv.org/abs/2604.00785, table 3), with Hugging Face's loop.

    python -m benchmarks.training.expert_variants recipe=NAME
"""

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.entry import run_script
from benchmarks.machine import medians_of
from benchmarks.ratios import Ratio, paired_ratio, save_benchmark, to_interval
from benchmarks.training.whole_run import ROUNDS, run_words, train_alternating

STEPS, WARM_STEPS = 7, 2
PLAIN = "loop, plain"
VARIANTS = {
    f"{path}, {optimizer}": (f"model.mlp.path={path}", f"parallelism.expert_aware={aware}")
    for path in ("loop", "grouped")
    for optimizer, aware in (("plain", "false"), ("aware", "true"))
}
SHAPE = (
    *("scale=mini", "cluster.ranks=2", "parallelism.data=1", "parallelism.expert=2"),
    *("parallelism.zero=1", "model.mlp.num_experts=64", "model.mlp.top_k=8"),
)


def measure_variants(words: list[str], home: Path) -> dict[str, Any]:
    """Train all variants in alternation; compare each with the loop and plain optimizer."""
    arguments = run_words([*words, *SHAPE], STEPS, home)
    by_variant = train_alternating(VARIANTS, arguments, home, warm_steps=WARM_STEPS)
    rates = {name: [run["rate"] for run in runs] for name, runs in by_variant.items()}
    medians = medians_of(rates)
    peaks = medians_of({
        name: [float(run["results"]["peak_memory_bytes"]) for run in runs]
        for name, runs in by_variant.items()
    })
    return {
        name: {
            "tokens_per_second": medians[name],
            "peak_bytes": peaks[name],
            "speed_up": paired_ratio(values, rates[PLAIN]),
            "memory": peaks[name] / peaks[PLAIN],
        }
        for name, values in rates.items()
        if name != PLAIN
    }


def ratios_of(variants: dict[str, Any]) -> list[Ratio]:
    """Return the ratios of speed and memory of each variant."""
    return [
        ratio
        for name, figures in variants.items()
        for ratio in (
            Ratio(f"{name}, speed", PLAIN, **to_interval(figures["speed_up"])),
            Ratio(f"{name}, memory", PLAIN, figures["memory"]),
        )
    ]


def main(words: list[str]) -> int:
    """Measure and save the result."""
    with tempfile.TemporaryDirectory() as home:
        variants = measure_variants(words, Path(home))
    shape = {"recipe": words, "words": SHAPE, "rounds": ROUNDS, "steps": STEPS}
    return save_benchmark("expert_variants", shape, {"variants": variants}, ratios_of(variants))


if __name__ == "__main__":
    run_script(main)
