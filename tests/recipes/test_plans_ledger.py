"""The ledger's table of plans is what the plans say."""

import json
import os
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
LEDGER = ROOT / "recipes" / "README.md"
PLANS = Path(__file__).parent / "plans"
REHEARSED = ROOT / "benchmarks" / "results" / "dryruns.json"
HEAD = """\
| Recipe | Cluster | Nodes | Memory, GiB | Verdict | Dry run | Step | MFU, full | Hours |
|---|---|---:|---:|---|---|---:|---:|---:|
"""
BEGIN, END = "<!-- plans: written by `make golden` -->\n", "<!-- end of plans -->\n"


def rehearsed(recipe: str, cluster: str) -> str:
    """Say what the dry run found, if there was one at home."""
    tree = json.loads(REHEARSED.read_text("utf-8"))["recipes"].get(recipe)
    if tree is None or tree["cluster"] != cluster:
        return "-"
    memory = tree["memory"]
    return f"{memory['peak_bytes'] / 2**30:.1f}, {memory['verdict'].replace('_', ' ')}"


def row(file: Path) -> str:
    plan = yaml.safe_load(file.read_text("utf-8"))
    memory, time, bill = plan["memory"], plan["time"], plan["bill"]
    cells = [
        f"`{plan['recipe']}`",
        plan["cluster"],
        f"{plan['layout']['nodes']:,}",
        f"{memory['peak_bytes'] / 2**30:.1f} of {memory['usable_bytes'] / 2**30:.1f}",
        memory["verdict"].replace("_", " "),
        rehearsed(plan["recipe"], plan["cluster"]),
        "-" if time["step_seconds"] is None else f"{time['step_seconds']:.3g} s",
        "-" if time["mfu_full"] is None else f"{time['mfu_full']:.0%}",
        "-" if bill["device_hours"] is None else f"{bill['device_hours']:,.3g}",
    ]
    return "| " + " | ".join(cells) + " |\n"


def test_the_ledger_s_plans_are_the_golden_ones() -> None:
    table = HEAD + "".join(row(file) for file in sorted(PLANS.iterdir()))
    text = LEDGER.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    written, _, after = rest.partition(END)
    if os.environ.get("UPDATE_GOLDEN"):
        LEDGER.write_text(before + BEGIN + table + END + after, "utf-8")
        written = table
    assert written == table, "`make golden` writes it"
