"""A small recipe and the folder of its run."""

from functools import cache
from pathlib import Path

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.config.schema.cluster import Preflight
from components.preflight.verdict import ClockOffset, NodeFinding, NodeReport
from components.run.folder import RunFolder
from tests.life.conftest import TINY


@cache
def compose(*words: str) -> Recipe:
    return compose_recipe(read_point([*TINY, *words]))


@pytest.fixture(scope="session")
def rules() -> Preflight:
    """What conf/ says."""
    rules = compose().cluster.preflight
    assert isinstance(rules, Preflight)
    return rules


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


def finding(check: str, verdict: str) -> NodeFinding:
    says = {"found": "x", "expected": "y", "rule": "z", "remedy": "mend it"}
    return NodeFinding.model_validate({"check": check, "verdict": verdict, **says})


def report(
    node: str, *, cores: int = 8, rate: float | None = 1.0, ahead: float | None = None
) -> NodeReport:
    """What a node says in whose own checks nothing is wrong."""
    clock = None if ahead is None else ClockOffset(ahead_seconds=ahead, uncertain_seconds=0.1)
    return NodeReport(
        node=node, findings=(finding("devices", "ok"),), cores=cores, product_teraflops=rate,
        dtype="bfloat16", clock=clock, seconds=1.0,
    )  # fmt: skip
