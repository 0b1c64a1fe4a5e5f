"""Pass orders in a V: ZBV and DualPipeV, as torch.distributed.pipelining makes them.

Rank r of p has the stages r and 2 p - 1 - r, here called 0 and 1. A pass goes through one of
them: F forward, B backward, I backward to the stage's input alone, W to its weights. Each stage
takes its microbatches in turn, so the order of passes says which one is meant.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

# A pass in these letters, the number of its microbatch, and whether the next pass overlaps it.
Numbered = tuple[str, int, bool]


def zbv(rank: int, pipeline: int, microbatches: int) -> Iterator[Numbered]:
    """List the passes of one rank (Qi et al. 2023, arXiv 2401.10241, section 6).

    Two microbatches a rank, less one, fill the pipeline; with fewer their places are empty.
    """
    later = pipeline - rank
    filled = max(microbatches, 2 * pipeline - 1)
    passes = ["F0"] * (2 * later - 1) + ["F1", "F0"] * rank + ["F1", "I1", "W1"] * later
    left = filled - passes.count("F0")
    for turn in range(filled - pipeline):
        passes += ["F0"] * (turn < left) + ["I0", "W0", "F1", "I1", "W1"]
    passes += ["I0", "I1"] * rank + ["I0", "W0"] * later + ["W1"] * rank + ["W0"] * rank
    return (one for one in _number(passes) if one[1] < microbatches)


def dualpipev(rank: int, pipeline: int, microbatches: int) -> Iterator[Numbered]:
    """List the passes of one rank (DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1).

    As in github.com/deepseek-ai/DualPipe, in whose eight parts ``&`` stands for two passes that
    overlap. Half of the last backward passes are split, and what waits is done as W.
    """
    later, last = pipeline - rank - 1, rank == pipeline - 1
    passes = ["F0"] * 2 * later + ["F0", "F1"] * (rank + 1) + ["I1", "W", "F1"] * later
    for turn in range(microbatches - 2 * pipeline + rank + 1):
        passes += ["F0" if last and turn == 0 else "F0&", "B1", "F1&", "B0"]
    passes += ["B1", "F1&", "B0"] * later
    draining = ["B1", "B0"] * (rank + 1)
    passes += draining[: rank + 1] + [name.replace("B", "I") for name in draining[rank + 1 :]]
    passes += ["W", "I0"] * later + ["W"] * (rank + 1)
    return _number(passes)


def _number(passes: Sequence[str]) -> Iterator[Numbered]:
    """Count each stage's microbatches; a W without a stage is that of the oldest I."""
    done: Counter[str] = Counter()
    waiting: list[tuple[str, int]] = []
    for name in passes:
        if name == "W":
            if waiting:
                stage, number = waiting.pop(0)
                yield f"W{stage}", number, False
            continue
        kind, stage = name[0], name[1]
        counted = f"{'B' if kind == 'I' else kind}{stage}"
        number, done[counted] = done[counted], done[counted] + 1
        if kind == "I":
            waiting.append((stage, number))
        yield f"{kind}{stage}", number, name.endswith("&")


PASSES: Mapping[str, Callable[[int, int, int], Iterator[Numbered]]] = {
    "zbv": zbv,
    "dualpipev": dualpipev,
}
