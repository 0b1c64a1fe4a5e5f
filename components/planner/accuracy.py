"""Accuracy of planned steps: errors against measured steps, by machine and kind of layer.

``accuracy.yaml`` is written by ``python -m benchmarks.planning.error_classes write``.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from components.config.schema.types import Count, Section
from components.config.validation import read_section
from components.planner.job import TrainingJob
from components.planner.software import NonNegativeFigure

ACCURACY = Path(__file__).with_name("accuracy.yaml")
FEW_NODES = 8  # more nodes are a class of their own
FEWEST_ROWS = 16  # with fewer rows, a class has the errors of other machines
LayerClass = Literal["dense", "experts"]


class Accuracy(Section):
    """Errors of one class of measured steps.

    Nine of ten steps are within ``p90_factor`` of the plan, in both directions. Without
    ``machine``, the class has all rows of machines that no constant was fitted to.
    """

    machine: str | None
    layers: LayerClass
    nodes: Literal["few", "many", "any"]
    rows: Count
    median_error: NonNegativeFigure
    p90_factor: Annotated[float, Field(ge=1)]

    @property
    def description(self) -> str:
        """Describe the class as text, such as ``426 on CLUSTER with up to 8 nodes``."""
        size = {"few": f"up to {FEW_NODES}", "many": f"more than {FEW_NODES}"}.get(self.nodes)
        where = f"on {self.machine}" if self.machine else "on other machines"
        where += f" with {size} nodes" if size else ""
        experts = " of mixtures of experts" if self.layers == "experts" else ""
        return f"{self.rows}{experts} {where}"


def classify_job(job: TrainingJob) -> tuple[LayerClass, Literal["few", "many"]]:
    """Return the class of a job: its kind of layer, and whether it has few or many nodes."""
    many = job.layout.num_ranks > FEW_NODES * job.devices_per_node
    return "experts" if job.shape.mlp.num_experts else "dense", "many" if many else "few"


@cache
def read_classes() -> tuple[Accuracy, ...]:
    """Read the errors of all classes."""
    trees = yaml.safe_load(ACCURACY.read_text("utf-8"))
    return tuple(read_section(Accuracy, tree, ACCURACY.name) for tree in trees)


def find_accuracy(machine: str, job: TrainingJob) -> Accuracy:
    """Return the errors measured on a machine, or on other machines if it has too few rows."""
    layers, nodes = classify_job(job)
    classes = {(known.machine, known.layers, known.nodes): known for known in read_classes()}
    own = classes.get((machine, layers, nodes))
    if own is not None and own.rows >= FEWEST_ROWS:
        return own
    return classes[None, layers, "any"]
