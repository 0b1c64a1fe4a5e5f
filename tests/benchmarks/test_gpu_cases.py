"""Every GPU case runs here at toy size, with the same code."""

import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters

from benchmarks.gpu import titan
from benchmarks.gpu.cases import GpuCase, read_cases
from benchmarks.gpu.checks import run_tests
from benchmarks.gpu.observing import MOST_KERNELS, kernel_table
from benchmarks.gpu.own_step import compose_case
from benchmarks.gpu.run_case import measure_case
from benchmarks.gpu.steps import compute_rates
from benchmarks.pytest_report import summarize_report
from command.arguments import ROOT
from components.errors import RecipeError

TOYS = {case.name: case for case in read_cases(toy=True)}
STEPS = [name for name, case in TOYS.items() if case.runs.endswith("steps.measure_steps")]
ENTROPY_TOLERANCE = 0.05  # random weights predict almost nothing

pytestmark = pytest.mark.filterwarnings(
    "ignore"  # compilers, float8 emulation and the profiler warn about their own imports
)


@pytest.fixture(autouse=True)
def reset_torch() -> Iterator[None]:
    """Start without graphs of other tests, and destroy the process group of a case."""
    torch._dynamo.reset()
    counters.clear()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def needs_torchtitan(case: GpuCase) -> bool:
    return "titan" in str(case.settings) and find_spec("torchtitan") is None


@pytest.mark.quick("dense-selective")
@pytest.mark.parametrize("name", TOYS)
def test_a_case_runs_at_toy_size(name: str) -> None:
    case = TOYS[name]
    if needs_torchtitan(case):
        with pytest.raises(RecipeError, match="variant: torchtitan is not installed"):
            case.run()
        return
    result = measure_case(case)
    assert result["outcome"] == "finished"
    assert result["device"] == "CPU"
    if name in STEPS:
        check_step(result["found"], compose_case(case.settings["words"]))


def check_step(figures: dict[str, Any], recipe: Any) -> None:
    """Check the figures of a step against its seconds and the recipe."""
    assert len(figures["seconds"]) == 2
    tokens_per_second = figures["tokens_per_step"] / figures["step_seconds"]
    flops = figures["teraflops_full"] * 1e12 / tokens_per_second
    assert flops == pytest.approx(recipe.derived_numbers.flops_per_token.full)
    assert figures["teraflops_causal"] < figures["teraflops_full"]
    entropy = math.log(recipe.decoder_spec.vocab_size)
    assert figures["losses"] == pytest.approx([entropy] * 3, rel=ENTROPY_TOLERANCE)
    assert 0 < len(figures["kernels"]) <= MOST_KERNELS
    compiled = recipe.parallelism.compile != "none"
    assert (figures["graphs"] > 0) == compiled
    assert figures["recompiles"] == 0


def test_rates_are_in_both_conventions() -> None:
    recipe = compose_case(TOYS["short"].settings["words"])
    rates = compute_rates(recipe, step_seconds=2.0)
    assert rates["tokens_per_second"] == recipe.derived_numbers.tokens_per_step / 2
    flops = recipe.derived_numbers.flops_per_token
    assert rates["teraflops_full"] / rates["teraflops_causal"] == flops.full / flops.causal


def test_a_table_of_kernels_has_the_longest_first() -> None:
    rows = [(f"kernel {number}", 1, float(number)) for number in range(40)]
    table = kernel_table(rows)
    assert len(table) == MOST_KERNELS
    assert table[0] == {"name": "kernel 39", "calls": 1, "seconds": 39e-6, "share": 39 / 780}


def test_messages_of_failures_do_not_contain_the_path_of_the_checkout() -> None:
    report = ElementTree.fromstring(
        '<testsuite><testcase classname="a" name="good" time="3.5"/>'
        f'<testcase classname="a" name="bad"><failure message="1 is not {ROOT}/2"/></testcase>'
        '<testcase classname="a" name="none"><skipped message="needs two"/></testcase>'
        "</testsuite>"
    )
    summary = summarize_report(report)
    assert summary["passed"] == 1
    assert summary["failure"] == [{"test": "a.bad", "message": "1 is not CHECKOUT/2"}]
    assert summary["slowest"][0] == {"test": "a.good", "seconds": 3.5}
    assert summary["skipped"] == [{"test": "a.none", "message": "needs two"}]


def test_a_failed_start_of_pytest_is_not_a_result() -> None:
    with pytest.raises(RuntimeError, match="pytest ended with 4"):
        run_tests(["tests/nowhere.py"])


def test_torchtitan_rejects_an_unsupported_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(titan, "find_spec", lambda name: object())
    words = [word for word in TOYS["short"].settings["words"] if "tied" not in word]
    recipe = compose_case([*words, "model.tied_embeddings=true"])
    with pytest.raises(RecipeError, match="model: torchtitan has no tied weights"):
        titan.TitanLlama(recipe, torch.device("cpu"))
