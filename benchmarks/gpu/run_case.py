"""Run one GPU case in this process and write its result.

    python -m benchmarks.gpu.run_case CASE FILE [scale=toy] [cases=FILE]

Out of memory is a result, with the peak until then. Any other error ends the process; the
driver stores the last lines of its output.
"""

import json
import os
import time
from pathlib import Path

from benchmarks.entry import run_script
from benchmarks.gpu.cases import FILE, GpuCase, ResultFields, read_cases
from benchmarks.gpu.observing import device_name, memory_gib, peak_memory, this_device
from benchmarks.results_store import result_context, save_tree
from components.distributed.devices import device_type
from components.train.ranks import allocator_variables

FINISHED, OUT_OF_MEMORY = "finished", "out of memory"
CONVENTION = (
    "seconds of a step by device events, median of the timed steps; FLOPs of forward and "
    "backward without recomputation, with the whole attention matrix (full) or half (causal)"
)
# The messages of torch's allocator and of NVIDIA's libraries.
_MEMORY_ERRORS = ("out of memory", "ALLOC_FAILED")


def measure_case(case: GpuCase) -> ResultFields:
    """Run a case; return its figures, settings, device and outcome."""
    device, start = this_device(), time.monotonic()
    try:
        figures, outcome = case.run(), FINISHED
    except RuntimeError as error:
        if not any(message in str(error) for message in _MEMORY_ERRORS):
            raise
        figures = {"error": str(error).splitlines()[0], **peak_memory(device)}
        outcome = OUT_OF_MEMORY
    return {
        "case": case.name,
        "part": case.part,
        "settings": dict(case.settings),
        "device": device_name(device),
        "outcome": outcome,
        "seconds": time.monotonic() - start,
        "found": figures,
        **result_context(
            peer="see settings", convention=CONVENTION, shape={"least_gib": case.least_gib}
        ),
    }


def main(words: list[str]) -> int:
    """Measure a case and write its result, or print the name and memory of the device."""
    if words[0] == "device":
        device = this_device()
        print(json.dumps({"name": device_name(device), "gib": memory_gib(device)}))
        return 0
    options = dict(word.split("=", 1) for word in words[2:])
    cases = read_cases(Path(options.get("cases", FILE)), toy=options.get("scale") == "toy")
    (case,) = (case for case in cases if case.name == words[0])
    os.environ |= allocator_variables(device_type("auto"), os.environ)  # as in a run
    save_tree(Path(words[1]), measure_case(case))
    return 0


if __name__ == "__main__":
    run_script(main, min_words=1, max_words=4)
