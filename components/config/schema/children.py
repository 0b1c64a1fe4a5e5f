"""Schema of ``children``: what follows from checkpoints of a run, by the names of the nodes."""

from typing import Annotated, Any, Literal

from pydantic import Field

from components.config.schema.phases import ABSENT, EMPTY
from components.config.schema.sections import Stem
from components.config.schema.start import Takes
from components.config.schema.types import Count, FrozenMapping, KeyGroup, Section, Words

# Weights of checkpoints that are averaged: `coefficients` of components/convert/merging.py.
Average = Literal["uniform", "ema", "linear", "1-sqrt", "cosine", "exponential"]
KINDS = ("with", "merge", "evaluate", "export")


class MergeNode(Section):
    """The ``last`` kept checkpoints become one, as `action=merge` averages them."""

    last: Count
    average: Average = "uniform"
    ema_decay: Annotated[float | None, Field(gt=0, lt=1), ABSENT] = None


class EvaluateNode(Section):
    """What a checkpoint is asked, as `action=evaluate` asks; nothing: its held-out loss."""

    tasks: Words = ()


class ExportNode(Section):
    """A checkpoint as a folder of another program, as `action=export` writes it."""


class Child(Section):
    """A node below the run, or below the node that it is ``of``; one of `KINDS` says what.

    ``with`` makes it a run with the keys of ``set``, whose settled ``fingerprint`` is here.
    """

    keys_group = KeyGroup.RECORD

    of: Annotated[Stem | None, ABSENT] = None
    at_tokens: Annotated[Count | None, ABSENT] = None
    every_tokens: Annotated[Count | None, ABSENT] = None
    takes: Annotated[Takes | None, ABSENT] = Field(default=None, alias="with")
    set: Annotated[FrozenMapping[Any], EMPTY] = Field(default_factory=dict)
    merge: Annotated[MergeNode | None, ABSENT] = None
    evaluate: Annotated[EvaluateNode | None, ABSENT] = None
    export: Annotated[ExportNode | None, ABSENT] = None
    fingerprint: Annotated[str | None, ABSENT] = None

    @property
    def kinds(self) -> list[str]:
        """What it says that it is: one of `KINDS`, if all is well."""
        given = (self.takes, self.merge, self.evaluate, self.export)
        return [kind for kind, one in zip(KINDS, given, strict=True) if one is not None]

    @property
    def kind(self) -> str:
        return "run" if self.takes is not None else self.kinds[0]
