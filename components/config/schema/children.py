"""Schema of ``children``: named nodes that start from checkpoints of a run."""

from typing import Annotated, Any, Literal

from pydantic import Field

from components.config.schema.phases import ABSENT, EMPTY
from components.config.schema.sections import Stem
from components.config.schema.start import Takes
from components.config.schema.types import Count, FrozenMapping, KeyGroup, Section, WordTuple

# Weights of averaged checkpoints: `compute_coefficients` of components/convert/merging.py.
Average = Literal["uniform", "ema", "linear", "1-sqrt", "cosine", "exponential"]
KINDS = ("with", "merge", "evaluate", "export")


class MergeNode(Section):
    """Average of the ``last`` kept checkpoints, as `action=merge` computes it."""

    last: Count
    average: Average = "uniform"
    ema_decay: Annotated[float | None, Field(gt=0, lt=1), ABSENT] = None


class EvaluateNode(Section):
    """Evaluation tasks of a checkpoint, as in `action=evaluate`; default: the held-out loss."""

    tasks: WordTuple = ()


class ExportNode(Section):
    """Export of a checkpoint for another program, as `action=export` writes it."""


class Child(Section):
    """Child of the run, or of the node named by ``of``; its kind is one of `KINDS`.

    ``with`` makes it a run with the keys of ``set`` and, once resolved, a ``fingerprint``.
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
    def node_kinds(self) -> list[str]:
        """Kinds that the node sets; a valid node sets exactly one of `KINDS`."""
        values = (self.takes, self.merge, self.evaluate, self.export)
        return [kind for kind, value in zip(KINDS, values, strict=True) if value is not None]

    @property
    def node_kind(self) -> str:
        return "run" if self.takes is not None else self.node_kinds[0]
