"""Schema of ``from``: the checkpoint that a run starts from."""

from typing import Annotated, Literal

from pydantic import Field

from components.config.schema.phases import ABSENT, EMPTY
from components.config.schema.sections import Stem
from components.config.schema.types import Count, FrozenMapping, KeyGroup, Place, Section

Takes = Literal["optimizer", "weights"]


class Start(Section):
    """Start from another run (the parent): its checkpoint, and the state to load.

    ``run`` is the folder of the parent, ``recipe`` the name of its recipe. Training needs the
    folder. ``with: optimizer`` continues weights, moments, data and clock; all lengths of the
    budget then count from the parent's first token. ``with: weights`` loads only the weights.
    ``fingerprint`` is derived. For an average, ``merged`` contains the coefficient of each
    checkpoint by its tokens.
    """

    keys_group = KeyGroup.MATHEMATICS

    run: Annotated[Place | None, KeyGroup.RECORD, ABSENT] = None
    recipe: Annotated[Stem | None, KeyGroup.RECORD, ABSENT] = None
    at_tokens: Annotated[Count | None, ABSENT] = None
    takes: Annotated[Takes, Field(alias="with")]
    fingerprint: Annotated[str | None, ABSENT] = None
    merged: Annotated[FrozenMapping[float], EMPTY] = Field(default_factory=dict)

    @property
    def goes_on(self) -> bool:
        """Whether the run continues with the optimizer's state."""
        return self.takes == "optimizer"

    @property
    def start_summary(self) -> str:
        """Description of the start in one line."""
        what = "all" if self.goes_on else "the weights"
        if self.merged:
            what = f"the average of {len(self.merged)} checkpoints"
        at = "" if self.at_tokens is None else f" after {self.at_tokens:,} tokens"
        return f"{what} of {self.run or self.recipe}{at}"


def describe_start(start: Start | None, rewound_to: int | None) -> str:
    """Describe the start and the last rollback of a run in one line, empty if neither."""
    lines = [] if start is None else [start.start_summary]
    lines += [] if rewound_to is None else [f"rolled back to {rewound_to:,} tokens"]
    return "; ".join(lines)
