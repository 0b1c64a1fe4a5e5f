"""A small recipe and the folder of its run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from command.arguments import read_point
from command.compose import compose_recipe
from components.preflight.verdict import Clock, Finding, Report
from components.spec.preflight import Preflight
from components.spec.recipe import Recipe
from components.train.run_folder import RunFolder
from tests.life.conftest import TINY

Compose = Callable[..., Recipe]


@pytest.fixture
def compose() -> Compose:
    return lambda *words: compose_recipe(read_point([*TINY, *words]))


@pytest.fixture
def rules(compose: Compose) -> Preflight:
    """What conf/ says."""
    rules = compose().cluster.preflight
    assert isinstance(rules, Preflight)
    return rules


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


def finding(check: str, verdict: str) -> Finding:
    return Finding.model_validate({
        "check": check,
        "verdict": verdict,
        "found": "x",
        "expected": "y",
        "rule": "z",
        "remedy": "mend it",
    })


def report(
    node: str, *, cores: int = 8, rate: float | None = 1.0, ahead: float | None = None
) -> Report:
    """What a node says in whose own checks nothing is wrong."""
    clock = None if ahead is None else Clock(ahead_seconds=ahead, uncertain_seconds=0.1)
    return Report(
        node=node,
        findings=(finding("devices", "ok"),),
        cores=cores,
        product_teraflops=rate,
        dtype="bfloat16",
        clock=clock,
        seconds=1.0,
    )
