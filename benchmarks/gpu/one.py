"""Run one case in this process and keep what it found.

    python -m benchmarks.gpu.one CASE FILE [scale=toy] [cases=FILE]

Memory that runs out is a result, with the peak until then. Any other failure ends the process:
whoever started it keeps its last words.
"""

import json
import os
import time
from pathlib import Path

import torch

from benchmarks.entry import enter
from benchmarks.gpu.cases import FILE, Found, GpuCase, read_cases
from benchmarks.gpu.device import gib_of, memory_of, name_of, this_device
from benchmarks.kept import circumstances
from components.distributed.devices import device_type
from components.train.ranks import allocator_variables

FINISHED, OUT_OF_MEMORY = "finished", "out of memory"
CONVENTION = (
    "seconds of a step by the device's events, the median of the timed ones; FLOPs of forward "
    "and backward without recomputation, attention's matrix whole (full) or half (causal)"
)
# What a library of NVIDIA's says where torch's allocator would have told.
_WANT = ("out of memory", "ALLOC_FAILED")


def measure(case: GpuCase) -> Found:
    """Run a case and describe it, its device and its end."""
    device, began = this_device(), time.monotonic()
    try:
        found, outcome = case.run(), FINISHED
    except RuntimeError as error:
        if not any(words in str(error) for words in _WANT):
            raise
        found, outcome = (
            {"error": str(error).splitlines()[0], **memory_of(device)},
            OUT_OF_MEMORY,
        )
    return {
        "case": case.name,
        "part": case.part,
        "settings": dict(case.settings),
        "device": name_of(device),
        "outcome": outcome,
        "seconds": time.monotonic() - began,
        "found": found,
        **circumstances(
            peer="as the settings say",
            convention=CONVENTION,
            shape={"least_gib": case.least_gib},
            packages=("torch", "lightning"),
        ),
    }


def main(words: list[str]) -> int:
    """Measure and write, or without a case tell of the device: its name and its memory."""
    if words[0] == "device":
        device = this_device()
        print(json.dumps({"name": name_of(device), "gib": gib_of(device)}))
        return 0
    options = dict(word.split("=", 1) for word in words[2:])
    cases = read_cases(Path(options.get("cases", FILE)), toy=options.get("scale") == "toy")
    (case,) = (one for one in cases if one.name == words[0])
    os.environ |= allocator_variables(device_type("auto"), os.environ)  # as a run has it
    torch.set_num_threads(int(options.get("threads", torch.get_num_threads())))
    Path(words[1]).write_text(json.dumps(measure(case), indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    enter(main, least=1, most=4)
