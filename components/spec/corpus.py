"""How raw text becomes the clean text of a corpus: the section ``data.preparation``.

``executor``, ``workers``, ``most_jobs`` and ``wait`` say where and how wide the work is done;
they change no byte of the result. Everything else decides it.
"""

from typing import Literal

from components.spec.document_steps import DocumentSteps
from components.spec.near_duplicates import NearDuplicates
from components.spec.section import Count, Section

MANNER = frozenset({"executor", "workers", "most_jobs", "wait"})


class Reading(Section):
    """What happens to what cannot be read: invalid documents, and those of excessive length.

    A document is invalid if it is not UTF-8, not JSON, or has no text; in UTF-8 it has
    ``longest_bytes`` at most.
    """

    invalid: Literal["refuse", "remove"]
    longest_bytes: Count | Literal["any"]


class ExactDuplicates(Section):
    """Of documents with the same normalised text the first one stays."""

    unit: Literal["document"]


class Preparation(DocumentSteps):
    """The stages, and how they are run: what is done to one document, then the duplicates.

    ``workers`` are processes on one machine, ``most_jobs`` elements of a job array, each on a
    node of its own. A task is about ``shard_bytes`` of input. Without ``wait`` a job array is
    submitted and the command ends; the same command goes on with what the array has done.
    Personal data is removed last, from what is kept.
    """

    executor: Literal["local", "slurm", "ray"]
    workers: Count | Literal["auto"]
    most_jobs: Count
    wait: bool
    shard_bytes: Count
    read: Reading
    exact_duplicates: ExactDuplicates | Literal["none"]
    near_duplicates: NearDuplicates | Literal["none"]
