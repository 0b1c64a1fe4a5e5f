"""Run one part of the GPU cases, each case in a separate process.

    python -m benchmarks.gpu.drive part=A [case=NAME ...] [minutes=8.5] [scale=toy] [out=FOLDER]
        [cases=FILE]

Each case adds its result to `FOLDER/A.json`, so an interrupted part continues with the next
case. `FOLDER` is `$OUT` if that is set, else `benchmarks/results/gpu`; the results in
`benchmarks/results/gpu` count in both cases. A case runs again if it is named, or if its
settings or the device have changed. Exit status 1 if a case failed or has no result.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.entry import run_script
from benchmarks.gpu.cases import CPU, FILE, GpuCase, ResultFields, read_cases, select_cases
from benchmarks.results_store import RESULTS, read_tree, save_tree
from command.arguments import ROOT
from components.child_process import python_environment
from components.errors import RecipeError

STORED = RESULTS / "gpu"
MINUTES = 8.5  # some machines end calls after ten minutes
TIMEOUT_FACTOR = 3.0  # limit of a case relative to its expected seconds
LAST_LINES = 30
RUN_CASE = (sys.executable, "-m", "benchmarks.gpu.run_case")
FAILED, TIMED_OUT = "failed", "timed out"
Results = dict[str, ResultFields]


class Part:
    """The results of one part, in a file that is always complete."""

    def __init__(self, name: str, folder: Path) -> None:
        self._file = folder / f"{name}.json"
        self.results: Results = {}
        for file in (STORED / self._file.name, self._file):
            self.results |= read_tree(file)

    def has(self, case: GpuCase, device: str) -> bool:
        """Return whether a case has a result with these settings and this device."""
        stored = self.results.get(case.name, {})
        return stored.get("settings") == case.settings and stored.get("device") == device

    def save_result(self, case: GpuCase, result: ResultFields) -> None:
        """Write a result into the file."""
        self.results[case.name] = result
        save_tree(self._file, self.results)


def run_in_process(
    case: GpuCase, device: str, *, seconds: float, options: Mapping[str, str]
) -> ResultFields:
    """Run a case in a separate process, with a limit in seconds."""
    start = time.monotonic()
    forwarded = [f"{key}={options[key]}" for key in ("scale", "cases") if key in options]
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "result.json", Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*RUN_CASE, case.name, str(file), *forwarded],
                cwd=ROOT,
                env=python_environment(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                status = process.wait(seconds)
                outcome = FAILED
            except subprocess.TimeoutExpired:
                status, outcome = -signal.SIGKILL, TIMED_OUT
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also the case's child processes
                process.wait()
        if file.exists() and status == 0:
            return read_tree(file)
        lines = log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]
    return {
        "case": case.name,
        "part": case.part,
        "settings": dict(case.settings),
        "device": device,
        "outcome": outcome,
        "seconds": time.monotonic() - start,
        "status": status,
        "last_lines": lines,
    }


def detect_device() -> ResultFields:
    """Detect the device in another process, so that this process uses none of its memory."""
    command = [*RUN_CASE, "device"]
    output = subprocess.check_output(command, cwd=ROOT, env=python_environment(), text=True)
    device: ResultFields = json.loads(output.splitlines()[-1])
    return device


def run_part(
    part: Part, cases: list[GpuCase], options: Mapping[str, str], *, again: bool
) -> int:
    """Run the cases without a result until the time is over; list the cases not started."""
    try:
        end = time.monotonic() + 60 * float(options["minutes"])
    except ValueError:
        problem = f"{options['minutes']!r} is not a number"
        raise RecipeError("minutes", problem, f"write minutes={MINUTES}") from None
    device = detect_device()
    if device["name"] == CPU and options.get("scale") != "toy":
        problem = "torch detects no GPU, and the cases have full size"
        fix = "install torch for the GPU, or set scale=toy to run the cases on a CPU"
        raise RecipeError("scale", problem, fix)
    not_started: list[str] = []
    for case in cases:
        seconds_left = end - time.monotonic()
        if not again and part.has(case, device["name"]):
            print_line(f"{case.name}: stored, {part.results[case.name]['outcome']}")
        elif case.least_gib > device["gib"]:
            print_line(f"{case.name}: not started, needs {case.least_gib:.0f} GiB")
        elif seconds_left < case.seconds:
            not_started.append(case.name)
        else:
            limit = TIMEOUT_FACTOR * case.seconds
            timeout = min(limit, seconds_left)
            result = run_in_process(case, device["name"], seconds=timeout, options=options)
            if result["outcome"] == TIMED_OUT and seconds_left < limit:
                not_started.append(case.name)  # the part had less time than the case's limit
                continue
            part.save_result(case, result)
            print_line(f"{case.name}: {result['outcome']}, {format_result(result)}")
    if not_started:
        print_line(f"not enough time for: {', '.join(not_started)}")
    outcomes = [part.results.get(case.name, {}).get("outcome") for case in cases]
    return int(bool(not_started) or bool({FAILED, TIMED_OUT} & {*outcomes}))


def format_result(result: ResultFields) -> str:
    """Describe the result of a case in one line."""
    figures: dict[str, Any] = result.get("found", {})
    words = [f"{result['seconds']:.0f} s"]
    if "tokens_per_second" in figures:
        words.append(f"{figures['tokens_per_second']:,.0f} tokens/s")
    if "ratio" in figures:
        words.append(f"ratio {figures['ratio']['median']:.3f}")
    if figures.get("peak_bytes"):
        words.append(f"{figures['peak_bytes'] / 2**30:.1f} GiB")
    words += result.get("last_lines", [])[-1:]
    return ", ".join(words)


def print_line(line: str) -> None:
    """Print without a buffer, which would be lost when the machine ends the call."""
    print(line, flush=True)


def main(words: list[str]) -> int:
    """Read the arguments and run the part."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    pairs = [word.partition("=")[::2] for word in words]
    valid = ("part", "case", "minutes", "scale", "out", "cases")
    for key, _ in pairs:
        if key not in valid:
            raise RecipeError(key, "unknown argument", f"choose from {', '.join(valid)}")
    out = os.environ.get("OUT", str(STORED))
    options = {"minutes": str(MINUTES), "out": out, **dict(pairs)}
    file = Path(options.get("cases", FILE))
    names = [value for key, value in pairs if key == "case"]
    cases = read_cases(file, toy=options.get("scale") == "toy")
    selected = select_cases(options.get("part", ""), names, cases)
    part = Part(options["part"], Path(options["out"]))
    return run_part(part, selected, options, again=bool(names))


if __name__ == "__main__":
    run_script(main, min_words=1)
