"""Run a part of the first half-hour on a GPU, each case in a process of its own.

    python -m benchmarks.gpu.drive part=A [case=NAME ...] [minutes=8.5] [scale=toy] [out=FOLDER]
        [cases=FILE]

After every case its result is in `FOLDER/A.json`, with those of before: a part that was stopped
goes on with the next one. `FOLDER` is `$OUT` if that is set, else `benchmarks/results/gpu`,
whose results count as known either way. A case is begun again if it is named, or if its
settings or the device are others. Status 1: not every case has a result that is one.
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

from benchmarks.entry import enter
from benchmarks.gpu.cases import CPU, FILE, Found, GpuCase, cases_of, read_cases
from benchmarks.kept import RESULTS
from command.arguments import ROOT
from components.child_process import python_environment
from components.data.files import replace_atomically
from components.errors import RecipeError

KEPT = RESULTS / "gpu"
MINUTES = 8.5  # a call that takes ten is cut off
PATIENCE = 3.0  # a case that takes so many times what it should is stopped
LAST_LINES = 30
FAILED, TIMED_OUT = "failed", "timed out"
Results = dict[str, Found]


class Part:
    """The results of one part, in a file that is whole at any moment."""

    def __init__(self, name: str, folder: Path) -> None:
        self._file = folder / f"{name}.json"
        self.results: Results = {}
        for file in (KEPT / self._file.name, self._file):
            if file.exists():
                self.results |= json.loads(file.read_text("utf-8"))

    def has(self, case: GpuCase, device: str) -> bool:
        """Return whether this very case has a result of this device."""
        known = self.results.get(case.name, {})
        return known.get("settings") == case.settings and known.get("device") == device

    def keep(self, case: GpuCase, result: Found) -> None:
        """Write a result down at once."""
        self.results[case.name] = result
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(self._file) as file:
            file.write((json.dumps(self.results, indent=1) + "\n").encode())


def run_apart(
    case: GpuCase, device: str, *, seconds: float, options: Mapping[str, str]
) -> Found:
    """Run a case in a process of its own, for so many seconds at the most."""
    began = time.monotonic()
    passed = [f"{key}={options[key]}" for key in ("scale", "cases") if key in options]
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, "-m", "benchmarks.gpu.one", case.name, str(file), *passed]
        with log.open("wb") as said:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=python_environment(),
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                status = process.wait(seconds)
                outcome = FAILED
            except subprocess.TimeoutExpired:
                status, outcome = -signal.SIGKILL, TIMED_OUT
            finally:
                _end(process)
        if file.exists() and status == 0:
            found: Found = json.loads(file.read_text("utf-8"))
            return found
        lines = log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]
    return {
        "case": case.name,
        "part": case.part,
        "settings": dict(case.settings),
        "device": device,
        "outcome": outcome,
        "seconds": time.monotonic() - began,
        "status": status,
        "last_lines": lines,
    }


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a case and whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def minutes_of(options: Mapping[str, str]) -> float:
    """Read for how long a part may go on.

    Raises:
        RecipeError: it is no number.
    """
    try:
        return float(options["minutes"])
    except ValueError:
        problem = f"{options['minutes']!r} is no number"
        raise RecipeError("minutes", problem, f"write minutes={MINUTES}") from None


def device_here() -> Found:
    """Ask another process which device there is: this one must hold none of its memory."""
    command = [sys.executable, "-m", "benchmarks.gpu.one", "device"]
    done = subprocess.run(
        command, cwd=ROOT, env=python_environment(), capture_output=True, text=True, check=True
    )
    device: Found = json.loads(done.stdout.splitlines()[-1])
    return device


def run_part(
    part: Part, cases: list[GpuCase], options: Mapping[str, str], *, again: bool
) -> int:
    """Run what has no result yet while there is time; say what was not begun."""
    end = time.monotonic() + 60 * minutes_of(options)
    device = device_here()
    if device["name"] == CPU and options.get("scale") != "toy":
        remedy = "load a torch for the GPU, or set scale=toy to try the cases on a CPU"
        raise RecipeError(
            "scale", "torch sees no GPU here, and the cases are of full size", remedy
        )
    waiting: list[str] = []
    for case in cases:
        left = end - time.monotonic()
        if not again and part.has(case, device["name"]):
            say(f"{case.name}: known, {part.results[case.name]['outcome']}")
        elif case.least_gib > device["gib"]:
            say(f"{case.name}: not begun, it needs {case.least_gib:.0f} GiB")
        elif left < case.seconds:
            waiting.append(case.name)
        else:
            most = PATIENCE * case.seconds
            result = run_apart(case, device["name"], seconds=min(most, left), options=options)
            if result["outcome"] == TIMED_OUT and left < most:
                waiting.append(case.name)  # it had less than its time
                continue
            part.keep(case, result)
            say(f"{case.name}: {result['outcome']}, {told(result)}")
    if waiting:
        say(f"not done for want of time: {', '.join(waiting)}")
    bad = [
        part.results.get(one.name, {}).get("outcome") in {FAILED, TIMED_OUT} for one in cases
    ]
    return int(bool(waiting) or any(bad))


def told(result: Found) -> str:
    """Describe in a line what a case came to."""
    found: dict[str, Any] = result.get("found", {})
    words = [f"{result['seconds']:.0f} s"]
    if "tokens_per_second" in found:
        words.append(f"{found['tokens_per_second']:,.0f} tokens/s")
    if "ratio" in found:
        words.append(f"ratio {found['ratio']['median']:.3f}")
    if found.get("peak_bytes"):
        words.append(f"{found['peak_bytes'] / 2**30:.1f} GiB")
    words += result.get("last_lines", [])[-1:]
    return ", ".join(words)


def say(line: str) -> None:
    """Print at once: what is buffered is lost when a call is cut off."""
    print(line, flush=True)


def main(words: list[str]) -> int:
    """Read the words and run the part that they name."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    pairs = [word.partition("=")[::2] for word in words]
    known = ("part", "case", "minutes", "scale", "out", "cases")
    for key, _ in pairs:
        if key not in known:
            raise RecipeError(key, "unknown word", f"choose from {', '.join(known)}")
    options = {"minutes": str(MINUTES), "out": os.environ.get("OUT", str(KEPT)), **dict(pairs)}
    file = Path(options.get("cases", FILE))
    names = [value for key, value in pairs if key == "case"]
    cases = read_cases(file, toy=options.get("scale") == "toy")
    chosen = cases_of(options.get("part", ""), names, cases)
    part = Part(options["part"], Path(options["out"]))
    return run_part(part, chosen, options, again=bool(names))


if __name__ == "__main__":
    enter(main, least=1)
