"""Requirements of runs name all packages that runs import, without the tools of the tests."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions

from tests.house.test_house import ROOT, nodes_of

installed_distributions = cache(packages_distributions)
ROOMS = ("command", "cluster", "components", "data_prep")
NAME = re.compile(r"^([A-Za-z0-9_.-]+)", re.MULTILINE)


def named_in(*names: str) -> set[str]:
    texts = [(ROOT / "requirements" / name).read_text("utf-8") for name in names]
    return {normal(name) for text in texts for name in NAME.findall(text)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imports(folder: str) -> Iterator[str]:
    for file in (ROOT / folder).rglob("*.py"):
        for node in nodes_of(file):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def distributions(folder: str) -> set[str]:
    """Name the distributions that a room imports, from the packages installed here."""
    uninstalled = {"pynvml": ["nvidia-ml-py"], "mlflow": ["mlflow-skinny"]}
    homes = {**uninstalled, **installed_distributions()}
    ours = {*ROOMS, *sys.stdlib_module_names}
    return {normal(homes.get(name, [name])[0]) for name in set(imports(folder)) - ours}


def test_requirements_of_runs_name_all_imports() -> None:
    own = named_in(
        "run.in", "torch.txt", "deepspeed.in", "evaluate.in", "tracking.in", "fp8.in"
    )
    assert set().union(*map(distributions, ("command", "cluster", "components"))) <= own


def test_requirements_of_preparation_name_all_imports() -> None:
    assert distributions("data_prep") <= named_in("run.in", "torch.txt", "data.in")
