"""The planner's constants: what of memory and time is the software's choice.

They are as shipped (``software.yaml``), or as a cluster's own runs corrected them: a
calibration is a small file beside the cluster's profile, ``NAME.calibration.yaml``, that says
where it comes from and how far off the plan is on runs that it has not seen.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from components.config.schema.cluster import Hardware
from components.config.schema.sections import Cluster
from components.config.schema.types import Count, FrozenMapping, Section
from components.config.validation import read_section
from components.errors import RecipeError

OURS = Path(__file__).with_name("software.yaml")
PROFILES = Path(__file__).parents[2] / "conf" / "cluster"
HEAD = "# By action=plan calibrate=[...]; delete the file to plan with the shipped figures.\n"
Figure = Annotated[float, Field(ge=0)]


class SoftwareMemory(Section):
    """Figures of one training program's memory.

    ``step_bytes`` a parameter are added during the optimizer's step, ``shared_step_bytes`` of
    them divided like its state. ``keeps_gradients`` tells whether their memory is there before
    a step's first backward pass.
    ``logit_bytes`` is kept for each logit of a microbatch; a loss that goes by blocks keeps
    those of ``block_tokens`` in the products' precision. ``own_gradients`` tells whether
    autograd makes a weight's gradient apart before it adds it up: the head's with the loss,
    where it waits for the backward pass in float32, and the embedding's last of all.
    ``keeps_gathered`` tells whether a block's input stays as it was gathered from slices of the
    sequence, ``stage_outputs`` how many hidden states a stage keeps of a microbatch beside its
    layers'. ``gathered_tensors`` counts hidden states of whole sequences that wait for their
    streams beside what a layer keeps, with and without a pipeline. ``fragmentation`` multiplies
    activations; ``base_bytes``
    is there before anything.
    """

    step_bytes: float
    shared_step_bytes: float
    keeps_gradients: bool
    logit_bytes: float
    block_tokens: int
    own_gradients: bool
    keeps_gathered: bool
    stage_outputs: int
    gathered_tensors: float
    gathered_tensors_in_pipelines: float
    fragmentation: float
    base_bytes: float


class SoftwareSpeed(Section):
    """Figures of one training program's speed.

    ``product_fraction`` of the device's best matrix products is what products of well-formed
    shapes reach, ``attention_fraction`` what fused attention does. Each byte that a layer keeps
    is moved ``traffic`` times, of a logit ``logit_bytes_moved`` beside the head's products. The
    host needs ``layer_seconds`` to start a layer forward and backward, ``tensor_layer_seconds``
    with tensor parallelism and ``crossing_layer_seconds`` more for each tensor rank where a
    pipeline crosses nodes. ``tensor_collectives`` of a layer are exposed by
    ``exposed_fraction``; a message to the next stage costs ``message_seconds``.
    ``reduced_fraction`` multiplies the time of averaging gradients, which ``hides_reduction``
    behind the last microbatch without ZeRO where the layout does not say ``overlap``. The
    optimizer moves its state ``step_traffic`` times and waits ``step_latencies`` latencies for
    each node.
    The host starts one operator of an expert's in ``start_seconds``; to read a number from the
    device, and to fill its queue again, takes ``read_seconds``. Of learned routers the fullest
    expert gets ``fullest_expert`` times the mean of all (`components.planner.experts`).
    """

    product_fraction: float
    attention_fraction: float
    traffic: float
    logit_bytes_moved: float
    layer_seconds: float
    start_seconds: float
    read_seconds: float
    fullest_expert: float
    tensor_layer_seconds: float
    crossing_layer_seconds: float
    tensor_collectives: int
    exposed_fraction: float
    message_seconds: float
    reduced_fraction: float
    hides_reduction: float
    step_traffic: float
    step_latencies: float


class SoftwareRun(Section):
    """Figures of one training program between its steps.

    A job reaches its first step after ``start_up_seconds`` and ``start_up_rank_seconds`` more
    for each rank. Each rank hashes ``hash_gigabytes_per_second`` of a checkpoint's files, and
    copies ``copy_gigabytes_per_second`` from its device into the host's memory.
    """

    start_up_seconds: float
    start_up_rank_seconds: float
    hash_gigabytes_per_second: Annotated[float, Field(gt=0)]
    copy_gigabytes_per_second: Annotated[float, Field(gt=0)]


class SoftwareModel(Section):
    """One training program, as far as the planner knows it; without ``run`` only its steps."""

    memory: SoftwareMemory
    speed: SoftwareSpeed
    run: SoftwareRun | None


def read_software(file: Path) -> SoftwareModel:
    """Load the figures of one training program.

    Raises:
        RecipeError: a figure is missing, unknown or no number.
    """
    return read_section(SoftwareModel, yaml.safe_load(file.read_text("utf-8")), str(file))


class Errors(Section):
    """Errors of predictions, as fractions of what was measured; ``p90`` is the ninth decile."""

    mean: Figure
    median: Figure
    p90: Figure


class CalibrationErrors(Section):
    """Errors on all layouts: of the shipped constants, of those fitted to all of them.

    For ``held_out`` each half of the layouts is predicted with constants fitted to the other.
    """

    before: Errors
    fitted: Errors
    held_out: Errors


class MeasuredFrom(Section):
    """One file or run folder that was fitted to; ``sha256`` is of the table or the recipe."""

    name: str
    sha256: str
    steps: Count


class Calibration(Section):
    """Constants of ``speed`` and ``memory`` that take the place of the shipped ones."""

    cluster: str
    device: str
    fitted_on: str
    layouts: Count
    sources: Annotated[tuple[MeasuredFrom, ...], Field(strict=False, min_length=1)]
    speed: FrozenMapping[Figure]
    memory: FrozenMapping[Figure]
    time_error: CalibrationErrors
    memory_error: CalibrationErrors | None


def corrected(
    software: SoftwareModel, speed: Mapping[str, float], memory: Mapping[str, float]
) -> SoftwareModel:
    """Replace constants by name."""
    update = {
        "speed": software.speed.model_copy(update=dict(speed)),
        "memory": software.memory.model_copy(update=dict(memory)),
    }
    return software.model_copy(update=update)


def calibration_file(cluster: str) -> Path:
    """Return the path of a cluster's calibration, there or not."""
    return PROFILES / f"{cluster}.calibration.yaml"


def calibration_of(cluster: Cluster) -> Calibration | None:
    """Read the calibration of a cluster, if there is one and it is of the same device.

    Raises:
        RecipeError: the file is no calibration, or of a constant that does not exist.
    """
    file = calibration_file(cluster.name)
    if not file.is_file() or not isinstance(cluster.hardware, Hardware):
        return None
    try:
        tree = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        problem = f"cannot be read: {' '.join(str(error).split())}"
        raise RecipeError(str(file), problem, "mend it or delete it") from None
    found = read_section(Calibration, tree if isinstance(tree, dict) else {}, file.name)
    for section, kind in (("speed", SoftwareSpeed), ("memory", SoftwareMemory)):
        for key in getattr(found, section):
            if key not in kind.model_fields:
                problem = "the planner has no such constant"
                raise RecipeError(f"{file.name}.{section}.{key}", problem, "calibrate again")
    return found if found.device == cluster.hardware.device else None


def software_of(cluster: Cluster) -> tuple[SoftwareModel, Calibration | None]:
    """Return the constants to plan with, and the calibration that they are from, if any."""
    shipped, found = read_software(OURS), calibration_of(cluster)
    return (corrected(shipped, found.speed, found.memory) if found else shipped), found


def as_text(calibration: Calibration) -> str:
    """Write the file's text."""
    tree: dict[str, Any] = calibration.model_dump(mode="json")
    return HEAD + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=96)
