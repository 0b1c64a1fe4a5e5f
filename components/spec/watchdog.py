"""What a run is watched for by itself; the rules that change a run are the guards'."""

from typing import Annotated, Literal

from pydantic import Field

from components.spec.section import Count, Section

Seconds = Annotated[float, Field(gt=0)]


class Watchdog(Section):
    """Limits of a run that is watched, and how often its ranks are compared.

    A rank that takes longer than ``step_seconds`` in a step, or ``pause_seconds`` between two
    steps and in the first, hangs: its stacks and last ``collectives`` are written down and it
    is ended. Every ``every_steps`` steps the ranks compare how long they computed, and their
    memory: a rank is slow that needs ``slow_ratio`` times what its like need, and memory grows
    by ``memory_growth_fraction``. Weights that several ranks hold are compared every
    ``replicas_every_steps`` steps, and before each checkpoint. A run whose ranks fail starts
    again by itself ``restarts`` times, inside its job.
    """

    step_seconds: Seconds
    pause_seconds: Seconds
    collectives: Annotated[int, Field(ge=0)]
    every_steps: Count
    slow_ratio: Annotated[float, Field(gt=1)]
    memory_growth_fraction: Annotated[float, Field(gt=0)]
    replicas_every_steps: Count | Literal["never"]
    restarts: Annotated[int, Field(ge=0)]
