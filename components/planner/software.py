"""Software constants of the planner: memory and speed that depend on the training program.

The constants are the shipped ones (``software.yaml``) or corrections from a cluster's own runs:
``NAME.calibration.yaml``, with its sources and the plan's error on held-out runs.
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
NonNegativeFigure = Annotated[float, Field(ge=0)]


class SoftwareMemory(Section):
    """Memory constants of one training program.

    ``step_bytes`` per parameter are added during the optimizer step, plus ``shared_step_bytes``
    divided like its state. ``keeps_gradients``: gradients exist before the first backward pass.

    ``logit_bytes`` is kept for each logit of a microbatch. A loss in blocks keeps the logits of
    ``block_tokens`` in the precision of the products. ``own_gradients``: autograd creates a
    weight's gradient separately before adding it to the sum. The head's is created with the
    loss and waits in float32 for the backward pass; the embedding's is created last.

    ``keeps_gathered``: a block's input is kept as gathered from the slices of the sequence.
    ``stage_outputs`` is the number of hidden states that a stage keeps of a microbatch in
    addition to its layers'. ``gathered_tensors`` is the number of hidden states of whole
    sequences that wait for their streams in addition to a layer's activations.
    ``fragmentation`` multiplies activations. ``base_bytes`` exist before anything else.
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
    """Speed constants of one training program.

    Well-shaped products reach ``product_fraction`` of the device's best matrix products, fused
    attention reaches ``attention_fraction``. Each byte that a layer keeps is moved ``traffic``
    times. Each logit moves ``logit_bytes_moved`` in addition to the head's products.

    The host launches an operator in ``launch_seconds`` and a collective of tensor ranks in
    ``call_seconds`` (`components.planner.passes.count_launches`). The fraction
    ``exposed_fraction`` of a layer's ``tensor_collectives`` is not hidden. A message to the
    next stage takes ``message_seconds``.

    ``reduced_fraction`` multiplies the time of averaging gradients. ``hides_reduction`` is the
    fraction of the last microbatch's backward pass that hides it, without ZeRO and without
    ``overlap`` in the layout. The optimizer moves its state ``step_traffic`` times and waits
    ``step_latencies`` latencies for each node.

    Reading a number from the device and refilling its queue takes ``read_seconds``. With
    learned routers the fullest expert gets ``fullest_expert`` times the mean
    (`components.planner.experts`). ``step_factor`` multiplies the whole step: a site card's
    step over its prediction.
    """

    product_fraction: float
    attention_fraction: float
    traffic: float
    logit_bytes_moved: float
    launch_seconds: float
    call_seconds: float
    read_seconds: float
    fullest_expert: float
    tensor_collectives: int
    exposed_fraction: float
    message_seconds: float
    reduced_fraction: float
    hides_reduction: float
    step_traffic: float
    step_latencies: float
    step_factor: float = 1.0


class SoftwareRun(Section):
    """Constants of one training program outside its steps.

    A job reaches its first step after ``start_up_seconds`` plus ``start_up_rank_seconds`` per
    rank. Hashing of checkpoint files and copies to host memory have rates per rank.
    """

    start_up_seconds: float
    start_up_rank_seconds: float
    hash_gigabytes_per_second: Annotated[float, Field(gt=0)]
    copy_gigabytes_per_second: Annotated[float, Field(gt=0)]


class SoftwareModel(Section):
    """Constants of one training program. Without ``run``, only its steps are known."""

    memory: SoftwareMemory
    speed: SoftwareSpeed
    run: SoftwareRun | None


def read_software(file: Path) -> SoftwareModel:
    """Load the constants of one program; RecipeError for missing, unknown or wrong values."""
    return read_section(SoftwareModel, yaml.safe_load(file.read_text("utf-8")), str(file))


class Errors(Section):
    """Errors of predictions as fractions of the measured values; ``p90``: 90th percentile."""

    mean: NonNegativeFigure
    median: NonNegativeFigure
    p90: NonNegativeFigure


class CalibrationErrors(Section):
    """Errors on all layouts, with the shipped constants and with fitted constants.

    ``held_out`` predicts each half of the layouts with constants fitted to the other half.
    """

    before: Errors
    fitted: Errors
    held_out: Errors


class MeasuredFrom(Section):
    """Source of a calibration: file or run folder. ``sha256`` is of the table or the recipe."""

    name: str
    sha256: str
    steps: Count


class Calibration(Section):
    """Constants of ``speed`` and ``memory`` that replace the shipped ones."""

    cluster: str
    device: str
    fitted_on: str
    layouts: Count
    sources: Annotated[tuple[MeasuredFrom, ...], Field(strict=False, min_length=1)]
    speed: FrozenMapping[NonNegativeFigure]
    memory: FrozenMapping[NonNegativeFigure]
    time_error: CalibrationErrors
    memory_error: CalibrationErrors | None


def replace_constants(
    software: SoftwareModel, speed: Mapping[str, float], memory: Mapping[str, float]
) -> SoftwareModel:
    """Return the software model with constants replaced by name."""
    update = {
        "speed": software.speed.model_copy(update=dict(speed)),
        "memory": software.memory.model_copy(update=dict(memory)),
    }
    return software.model_copy(update=update)


def calibration_file(cluster: str) -> Path:
    """Return the path of a cluster's calibration, whether it exists or not."""
    return PROFILES / f"{cluster}.calibration.yaml"


def calibration_of(cluster: Cluster) -> Calibration | None:
    """Read a cluster's calibration for the same device, if any; RecipeError for a bad file."""
    file = calibration_file(cluster.name)
    if not file.is_file() or not isinstance(cluster.hardware, Hardware):
        return None
    try:
        tree = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        problem = f"cannot be read: {' '.join(str(error).split())}"
        raise RecipeError(str(file), problem, "correct the file or delete it") from None
    calibration = read_section(Calibration, tree if isinstance(tree, dict) else {}, file.name)
    for section, kind in (("speed", SoftwareSpeed), ("memory", SoftwareMemory)):
        for key in getattr(calibration, section):
            if key not in kind.model_fields:
                problem = "the planner has no such constant"
                raise RecipeError(f"{file.name}.{section}.{key}", problem, "calibrate again")
    return calibration if calibration.device == cluster.hardware.device else None


def software_of(
    cluster: Cluster, measured: Calibration | None = None
) -> tuple[SoftwareModel, Calibration | None]:
    """Return the constants to plan with, and the calibration that they come from, if any."""
    software, calibration = read_software(OURS), measured or calibration_of(cluster)
    if calibration is not None:
        software = replace_constants(software, calibration.speed, calibration.memory)
    return software, calibration


def as_text(calibration: Calibration) -> str:
    """Return the text of a calibration file."""
    tree: dict[str, Any] = calibration.model_dump(mode="json")
    return HEAD + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=96)
