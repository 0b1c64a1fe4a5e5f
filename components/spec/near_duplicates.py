"""How near duplicates are told: shingles, signatures and which pairs of them count."""

from typing import Annotated, Literal

from pydantic import Field

from components.spec.section import Count, Section


class NearDuplicates(Section):
    """MinHash over runs of ``ngram`` words, in ``bands`` of ``rows`` slots.

    Two documents whose shingles have Jaccard similarity s agree in a whole band, and become
    candidates, with probability 1 - (1 - s^rows)^bands (Leskovec, Rajaraman and Ullman, Mining
    of Massive Datasets, section 3.4.2). ``threshold`` is the similarity that a candidate must
    also have by its whole signature; with ``none`` every candidate counts.
    """

    ngram: Count
    bands: Count
    rows: Count
    threshold: Annotated[float, Field(gt=0, le=1)] | Literal["none"]
    seed: Annotated[int, Field(ge=0, lt=1 << 64)]
