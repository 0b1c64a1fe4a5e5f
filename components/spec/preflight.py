"""What a node must show before ranks start on it."""

from typing import Annotated, Literal

from pydantic import Field

from components.spec.section import Count, Fraction, Section

Seconds = Annotated[float, Field(gt=0)]
_ROUNDS = 1 + 2 + 3  # of pairs: the second waits twice as long as the first, the third thrice


class Preflight(Section):
    """Limits by which a node is judged.

    Who does not answer within ``answer_seconds`` is bad, and so is a link that takes longer
    than ``link_seconds``. A product and a link reach a fraction of what the profile says or, as
    to products, of what half of the nodes reach. Of each device's memory ``memory_fraction`` is
    free. Clocks differ by ``clock_seconds`` at most. The run's folder has room for so many
    ``checkpoints``, the folder for temporary files for ``temporary_bytes``. Of the data every
    file's size is compared, and the hashes of as many as have ``hashed_bytes`` together.
    """

    answer_seconds: Seconds
    link_seconds: Seconds
    product_fraction: Fraction
    link_fraction: Fraction
    memory_fraction: Fraction
    clock_seconds: Seconds
    checkpoints: Annotated[int, Field(ge=0)]
    temporary_bytes: Count
    hashed_bytes: Annotated[int, Field(ge=0)]

    @property
    def longest_seconds(self) -> float:
        """How long all of it may take, whatever hangs."""
        return self.answer_seconds + _ROUNDS * self.link_seconds


Preflights = Preflight | Literal["none"]
