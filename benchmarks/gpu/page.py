"""Write the measurements on GPUs and their predictions into docs/gpu.md.

    python -m benchmarks.gpu.page

This script measures nothing. A case without a result is "not measured".
"""

from benchmarks.entry import run_script
from benchmarks.generated_section import replace_section, table_line
from benchmarks.gpu.cases import GpuCase, ResultFields, read_cases
from benchmarks.gpu.predict import FILE, is_ours
from benchmarks.results_store import RESULTS, read_tree
from command.arguments import ROOT

PAGE = ROOT / "docs" / "gpu.md"
WRITER = "python -m benchmarks.gpu.page"
NONE = "not measured"
GIB = 2**30
STEPS = """\
| Case | GPU | Tokens/s | Plan | TFLOP/s full, causal | GiB | Dry run | Plan | J/token | Graph |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|
"""
COMPARISONS = """\
| Case | GPU | Variants | Seconds of the first over the second |
|---|---|---|---:|
"""


def render_page(text: str) -> str:
    """Replace the tables of the page by the tables of today's results."""
    results = {
        name: result
        for file in sorted((RESULTS / "gpu").glob("?.json"))
        for name, result in read_tree(file).items()
    }
    predicted = read_tree(FILE)
    cases = read_cases()
    ours = [case for case in cases if is_ours(case)]
    steps = (_step_row(case, results.get(case.name), predicted.get(case.name)) for case in ours)
    compared = [case for case in cases if "variants" in case.settings]
    comparisons = (_comparison_row(case, results.get(case.name)) for case in compared)
    devices = ", ".join(sorted({result["device"] for result in results.values()})) or NONE
    tables = f"{STEPS}{''.join(steps)}\n{COMPARISONS}{''.join(comparisons)}"
    return replace_section(text, "measured", WRITER, f"\nDevices: {devices}.\n\n{tables}\n")


def _step_row(case: GpuCase, result: ResultFields | None, plan: ResultFields | None) -> str:
    """Return a step's figures with its dry run and plan, if these have the same arguments."""
    predicted = plan if plan and plan["words"] == case.settings["words"] else {}
    figures = (result or {}).get("found", {})
    missing = NONE if result is None else result["outcome"]
    key = "budget.global_batch_tokens="
    (tokens,) = (w.removeprefix(key) for w in case.settings["words"] if w.startswith(key))
    speed, peak = figures.get("tokens_per_second"), figures.get("peak_bytes")
    seconds, joules = predicted.get("plan_step_seconds"), figures.get("joules_per_token")
    rates = [f"{figures[f'teraflops_{kind}']:.0f}" for kind in ("full", "causal") if speed]
    return table_line([
        f"`{case.name}`",
        _device_model(result),
        f"{speed:,.0f}" if speed else missing,
        f"{int(tokens) / seconds:,.0f}" if seconds else "",
        "; ".join(rates),
        f"{peak / GIB:.1f}" if peak else "",
        f"{predicted['dryrun_tensor_bytes'] / GIB:.1f}" if predicted else "",
        f"{predicted['plan_peak_bytes'] / GIB:.1f}" if predicted else "",
        f"{joules:.3f}" if joules else "",
        str(figures.get("graphs", "")),
    ])


def _comparison_row(case: GpuCase, result: ResultFields | None) -> str:
    """Return the median ratio of two variants, with its interval."""
    ratio = (result or {}).get("found", {}).get("ratio")
    outcome_text = NONE if result is None else result["outcome"]
    if ratio:
        outcome_text = f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
    names = ", ".join(case.settings["variants"])
    return table_line([f"`{case.name}`", _device_model(result), names, outcome_text])


def _device_model(result: ResultFields | None) -> str:
    """Return the model of the device without its maker and memory."""
    return "" if result is None else result["device"].removeprefix("NVIDIA ").partition(" ")[0]


def main() -> int:
    """Write the page."""
    PAGE.write_text(render_page(PAGE.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    run_script(lambda words: main(), max_words=0)
