"""The planner's constants for one cluster: as shipped, or as its own runs corrected them.

A calibration is a small file beside the cluster's profile, ``NAME.calibration.yaml``. It says
where it comes from and how far off the plan is on runs that it has not seen.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from components.config.schema.cluster import Hardware
from components.config.schema.recipe import read_section
from components.config.schema.sections import Cluster
from components.config.schema.types import Count, FrozenMapping, Section
from components.errors import RecipeError
from components.planner.software import OURS, SoftwareModel, read_software

PROFILES = Path(__file__).parents[2] / "conf" / "cluster"
ENDING = ".calibration.yaml"
HEAD = "# By action=plan calibrate=[...]; delete the file to plan with the shipped figures.\n"

Figure = Annotated[float, Field(ge=0)]


class Errors(Section):
    """Errors of predictions, as fractions of what was measured; ``p90`` is the ninth decile."""

    mean: Annotated[float, Field(ge=0)]
    median: Annotated[float, Field(ge=0)]
    p90: Annotated[float, Field(ge=0)]


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

    def software(self) -> SoftwareModel:
        """Put the constants in their places."""
        return corrected(read_software(OURS), self.speed, self.memory)


def corrected(
    software: SoftwareModel, speed: Mapping[str, float], memory: Mapping[str, float]
) -> SoftwareModel:
    """Replace constants by name."""
    return software.model_copy(
        update={
            "speed": software.speed.model_copy(update=dict(speed)),
            "memory": software.memory.model_copy(update=dict(memory)),
        }
    )


def calibration_file(cluster: str) -> Path:
    """Name the file, there or not."""
    return PROFILES / f"{cluster}{ENDING}"


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
    software = read_software(OURS)
    for section, kind in (("speed", software.speed), ("memory", software.memory)):
        for key in getattr(found, section):
            if key not in type(kind).model_fields:
                problem = "the planner has no such constant"
                raise RecipeError(f"{file.name}.{section}.{key}", problem, "calibrate again")
    return found if found.device == cluster.hardware.device else None


def software_of(cluster: Cluster) -> SoftwareModel:
    """Return the constants to plan with."""
    found = calibration_of(cluster)
    return found.software() if found else read_software(OURS)


def as_text(calibration: Calibration) -> str:
    """Write the file's text."""
    tree: dict[str, Any] = calibration.model_dump(mode="json")
    return HEAD + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=96)
