"""Write what was measured on a GPU, beside what was predicted, into docs/accelerators.md.

    python -m benchmarks.gpu.page

Nothing is measured here; what has no result yet is "not measured".
"""

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.entry import enter
from benchmarks.gpu.cases import GpuCase, read_cases
from benchmarks.gpu.predict import FILE, is_ours
from benchmarks.kept import RESULTS
from benchmarks.ledger.sections import table_line
from benchmarks.marked import split_marked
from command.arguments import ROOT

PAGE = ROOT / "docs" / "accelerators.md"
WRITER = "python -m benchmarks.gpu.page"
NONE = "not measured"
GIB = 2**30
STEPS = """\
| Case | On | Tokens/s | Plan | TFLOP/s full, causal | GiB | Dry run | Plan | J/token | Graph |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|
"""
TURNS = """\
| Case | On | Ways | Seconds of the first by those of the second |
|---|---|---|---:|
"""
Found = dict[str, Any]


def page(text: str) -> str:
    """Put today's tables between the marks of the page."""
    results = {
        name: result
        for file in sorted((RESULTS / "gpu").glob("?.json"))
        for name, result in json.loads(file.read_text("utf-8")).items()
    }
    predicted = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    head, _, tail = split_marked(text, "measured", WRITER)
    cases = read_cases()
    steps = (
        _step(one, results.get(one.name), predicted.get(one.name))
        for one in cases
        if is_ours(one)
    )
    turns = (_turn(one, results.get(one.name)) for one in cases if "ways" in one.settings)
    devices = ", ".join(sorted({one["device"] for one in results.values()})) or NONE
    return f"{head}\nOn: {devices}.\n\n{STEPS}{''.join(steps)}\n{TURNS}{''.join(turns)}\n{tail}"


def _step(case: GpuCase, result: Found | None, predicted: Found | None) -> str:
    """Set a step's figures beside those of its dry run and plan, if they are of its words."""
    same = predicted and predicted["words"] == case.settings["words"]
    ahead = predicted if same and predicted else {}
    return table_line([f"`{case.name}`", *_cells(result, ahead, _tokens(case))])


def _tokens(case: GpuCase) -> int:
    """Read how many tokens a step has from the case's words."""
    key = "budget.global_batch_tokens="
    (text,) = (w.removeprefix(key) for w in case.settings["words"] if w.startswith(key))
    return int(text)


def _cells(result: Found | None, ahead: Found, tokens: int) -> Iterator[str]:
    found = (result or {}).get("found", {})
    missing = NONE if result is None else result["outcome"]
    yield _device(result)
    speed, peak = found.get("tokens_per_second"), found.get("peak_bytes")
    seconds = ahead.get("plan_step_seconds")
    yield f"{speed:,.0f}" if speed else missing
    yield f"{tokens / seconds:,.0f}" if seconds else ""
    yield f"{found['teraflops_full']:.0f}; {found['teraflops_causal']:.0f}" if speed else ""
    yield f"{peak / GIB:.1f}" if peak else ""
    yield f"{ahead['dryrun_tensor_bytes'] / GIB:.1f}" if ahead else ""
    yield f"{ahead['plan_peak_bytes'] / GIB:.1f}" if ahead else ""
    joules = found.get("joules_per_token")
    yield f"{joules:.3f}" if joules else ""
    yield str(found.get("graphs", ""))


def _turn(case: GpuCase, result: Found | None) -> str:
    """Lay out a comparison in turns, with the interval of its median."""
    ratio = (result or {}).get("found", {}).get("ratio")
    told = NONE if result is None else result["outcome"]
    if ratio:
        told = f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
    ways = ", ".join(case.settings["ways"])
    return table_line([f"`{case.name}`", _device(result), ways, told])


def _device(result: Found | None) -> str:
    """Name the device by its model alone."""
    return "" if result is None else result["device"].removeprefix("NVIDIA ").partition(" ")[0]


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    enter(lambda words: main(), most=0)
