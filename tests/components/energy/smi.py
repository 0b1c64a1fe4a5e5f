"""A stand-in for AMD's ``rocm-smi``, an executable that tells what a test has written down."""

import json
from pathlib import Path

# Warnings come before the tree, which has more than the devices.
PROGRAM = """#!/bin/bash
echo "$*" >> {folder}/asked
[ "$*" = "--showenergycounter --json" ] || exit 2
echo "WARNING: AMD GPU device(s) is/are in a low-power state."
cat {folder}/told
"""
STEP = 15.259  # microjoules that a count of the accumulator is worth


def write_smi(programs: Path, joules: list[float]) -> None:
    """Write the program, which lists a device for each number: of a second die that is 0."""
    programs.mkdir(exist_ok=True)
    tree = {
        f"card{number}": {
            "Energy counter": str(round(one * 1e6 / STEP)),
            "Accumulated Energy (uJ)": str(round(one * 1e6, 2)),
        }
        for number, one in enumerate(joules)
    }
    told = tree | {"system": {"Driver version": "6.10.5"}}
    (programs / "told").write_text(json.dumps(told) + "\n", "utf-8")
    (programs / "rocm-smi").write_text(PROGRAM.format(folder=programs), "utf-8")
    (programs / "rocm-smi").chmod(0o755)
