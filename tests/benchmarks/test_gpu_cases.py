"""Every case of the GPU's half-hour runs here at the size of a toy, by the same code."""

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
from benchmarks.gpu.checks import run_tests, summary_of
from benchmarks.gpu.observing import MOST_KERNELS, table_of
from benchmarks.gpu.one import measure
from benchmarks.gpu.ours import compose
from benchmarks.gpu.steps import rates
from command.arguments import ROOT
from components.errors import RecipeError

TOYS = {case.name: case for case in read_cases(toy=True)}
STEPS = [name for name, case in TOYS.items() if case.runs.endswith("steps.alone")]
ENTROPY_TOLERANCE = 0.05  # drawn weights say next to nothing about a token

pytestmark = pytest.mark.filterwarnings(
    "ignore",  # compilers, float8's emulation and the profiler warn of their own imports
)


@pytest.fixture(autouse=True)
def own_world() -> Iterator[None]:
    """Begin without graphs of other tests, and take away the group that a case leaves."""
    torch._dynamo.reset()
    counters.clear()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def needs_torchtitan(case: GpuCase) -> bool:
    return "titan" in str(case.settings) and find_spec("torchtitan") is None


@pytest.mark.quick("dense-selective")
@pytest.mark.parametrize("name", TOYS)
def test_a_case_runs_at_the_size_of_a_toy(name: str) -> None:
    case = TOYS[name]
    if needs_torchtitan(case):
        with pytest.raises(RecipeError, match="way: torchtitan is not installed"):
            case.run()
        return
    result = measure(case)
    assert result["outcome"] == "finished"
    assert result["device"] == "CPU"
    if name in STEPS:
        check_step(result["found"], compose(case.settings["words"]))


def check_step(found: dict[str, Any], recipe: Any) -> None:
    """Hold the figures of a step to what follows from its seconds and from the recipe."""
    assert len(found["seconds"]) == 2
    flops = found["teraflops_full"] * 1e12 * found["step_seconds"] / found["tokens_per_step"]
    assert flops == pytest.approx(recipe.derived.flops_per_token.full)
    assert found["teraflops_causal"] < found["teraflops_full"]
    entropy = math.log(recipe.shape.vocab_size)
    assert found["losses"] == pytest.approx([entropy] * 3, rel=ENTROPY_TOLERANCE)
    assert 0 < len(found["kernels"]) <= MOST_KERNELS
    compiled = recipe.parallelism.compile != "none"
    assert (found["graphs"] > 0) == compiled
    assert found["recompiles"] == 0


def test_rates_are_in_both_conventions() -> None:
    recipe = compose(TOYS["short"].settings["words"])
    found = rates(recipe, step_seconds=2.0)
    assert found["tokens_per_second"] == recipe.derived.tokens_per_step / 2
    flops = recipe.derived.flops_per_token
    assert found["teraflops_full"] / found["teraflops_causal"] == flops.full / flops.causal


def test_a_table_of_kernels_has_the_longest_first() -> None:
    rows = [(f"kernel {number}", 1, float(number)) for number in range(40)]
    table = table_of(rows)
    assert len(table) == MOST_KERNELS
    assert table[0] == {"name": "kernel 39", "calls": 1, "seconds": 39e-6, "share": 39 / 780}


def test_of_what_does_not_pass_the_message_is_kept_without_the_checkouts_place() -> None:
    report = ElementTree.fromstring(
        '<testsuite><testcase classname="a" name="good" time="3.5"/>'
        f'<testcase classname="a" name="bad"><failure message="1 is not {ROOT}/2"/></testcase>'
        '<testcase classname="a" name="none"><skipped message="needs two"/></testcase>'
        "</testsuite>"
    )
    found = summary_of(report)
    assert found["passed"] == 1
    assert found["failure"] == [{"test": "a.bad", "message": "1 is not CHECKOUT/2"}]
    assert found["slowest"][0] == {"test": "a.good", "seconds": 3.5}
    assert found["skipped"] == [{"test": "a.none", "message": "needs two"}]


def test_tests_that_were_not_run_are_no_result() -> None:
    with pytest.raises(RuntimeError, match="pytest ended with 4"):
        run_tests(["tests/nowhere.py"])


def test_torchtitan_is_refused_a_shape_that_it_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(titan, "find_spec", lambda name: object())
    words = [word for word in TOYS["short"].settings["words"] if "tied" not in word]
    recipe = compose([*words, "model.tied_embeddings=true"])
    with pytest.raises(RecipeError, match="model: tied weights"):
        titan.TitanLlama(recipe, torch.device("cpu"))
