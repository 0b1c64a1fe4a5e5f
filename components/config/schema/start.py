"""Schema of ``from``: the checkpoint that a run starts from."""

from typing import Annotated, Literal

from pydantic import Field

from components.config.schema.phases import ABSENT, EMPTY
from components.config.schema.sections import Stem
from components.config.schema.types import Count, FrozenMapping, KeyGroup, Place, Section

Takes = Literal["optimizer", "weights"]


class Start(Section):
    """Which run a run starts from, after how many tokens, and what it takes.

    ``run`` is the folder of that run, ``recipe`` the name of its recipe. To train, the folder
    is needed. ``with: optimizer`` continues: weights, moments, data and clock. All lengths of
    the budget then count from the first token of that run. ``with: weights`` takes the weights
    alone. ``fingerprint`` is derived, and for an average ``merged`` has the part of each
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
        """Whether the optimizer's state is taken, too."""
        return self.takes == "optimizer"

    @property
    def summary(self) -> str:
        """The start in one line."""
        what = "all" if self.goes_on else "the weights"
        if self.merged:
            what = f"the average of {len(self.merged)} checkpoints"
        at = "" if self.at_tokens is None else f" after {self.at_tokens:,} tokens"
        return f"{what} of {self.run or self.recipe}{at}"


def describe_start(start: Start | None, rewound_to: int | None) -> str:
    """Say in one line what a run started from, and to where it last went back; else nothing."""
    lines = [] if start is None else [start.summary]
    lines += [] if rewound_to is None else [f"back at {rewound_to:,} tokens"]
    return "; ".join(lines)
