"""Schema of ``data``: sources, mixture, corpus preparation, near duplicates."""

from typing import Annotated, Literal

from pydantic import Field, PlainSerializer

from components.config.schema import types
from components.config.schema.document_steps import DocumentSteps
from components.config.schema.phases import ABSENT, Packing, PhaseStart
from components.config.schema.types import Count, FrozenMapping, KeyGroup, OrNone, Section


class NearDuplicates(Section):
    """Near duplicates by MinHash over ``ngram`` words, in ``bands`` of ``rows`` slots.

    Two documents with Jaccard similarity s of their shingles agree in a whole band, and become
    candidates, with probability 1 - (1 - s^rows)^bands (Leskovec, Rajaraman and Ullman, Mining
    of Massive Datasets, section 3.4.2). A candidate is a duplicate if the similarity of the
    whole signatures is at least ``threshold``; with ``none`` every candidate is.
    """

    ngram: Count
    bands: Count
    rows: Count
    threshold: Annotated[float, Field(gt=0, le=1)] | Literal["none"]
    seed: Annotated[int, Field(ge=0, lt=1 << 64)]


class Reading(Section):
    """Handling of invalid documents: ``refuse`` raises an error, ``remove`` drops them.

    A document is invalid if it is not UTF-8, not JSON, has no text, or has more than
    ``longest_bytes`` bytes in UTF-8.
    """

    invalid: Literal["refuse", "remove"]
    longest_bytes: Count | Literal["any"]


class ExactDuplicates(Section):
    """Exact duplicates: the first document with the same normalised text is kept."""

    unit: Literal["document"]


class Preparation(DocumentSteps):
    """Corpus preparation: steps for each document, duplicates, and how the work is executed.

    The execution settings change no byte of the result. ``workers`` are processes on one
    machine, ``most_jobs`` limits the elements of a job array, each on its own node. A task has
    about ``shard_bytes`` of input. Without ``wait`` the command submits a job array and ends;
    the same command later continues with the array's results. Personal data is removed last,
    from the kept documents.
    """

    executor: Annotated[Literal["local", "array", "ray"], KeyGroup.MACHINE]
    workers: Annotated[Count | Literal["auto"], KeyGroup.MACHINE]
    most_jobs: Annotated[Count, KeyGroup.MACHINE]
    wait: Annotated[bool, KeyGroup.MACHINE]
    shard_bytes: Count
    read: Reading
    exact_duplicates: OrNone[ExactDuplicates]
    near_duplicates: OrNone[NearDuplicates]


Prefixes = Annotated[types.Places, Field(exclude_if=lambda names: not names)]
# The first sample in the order of the run, and the number of samples.
SkipWindow = Annotated[
    tuple[Annotated[int, Field(ge=0)], Count], Field(strict=False), PlainSerializer(list)
]


class HubDataset(Section):
    """Arguments of ``datasets.load_dataset``; ``path`` is a hub name or a folder of files."""

    path: types.Place
    name: str | None = None
    split: str
    revision: str | None = None
    streaming: bool = False


Remark = Annotated[str | None, ABSENT, KeyGroup.RECORD]


class Source(Section):
    """Text of one source: files, a dataset, token files or an embedded corpus.

    All may be absent: a published corpus that cannot be shipped has a share but no text, and
    ``placeholder`` names the embedded corpus that replaces it in a miniature.

    ``column`` is the text field of records. ``tokens`` are prefixes of Megatron's ``.bin`` and
    ``.idx`` files; ``eod`` states whether their documents end with the end-of-document id.
    ``most_epochs`` limits how often a run reads the source: up to 4 times was nearly as good as
    new text in Muennighoff et al. 2023 (arXiv 2305.16264, abstract). ``language`` (ISO 639-1)
    is the declared language; a preparation with language identification reports how much of the
    text is in it. ``licence`` and ``origin`` appear in the data card.
    """

    keys_group = KeyGroup.MATHEMATICS

    files: types.Places = ()
    embedded: str | None = None
    placeholder: Annotated[str | None, KeyGroup.RECORD] = None
    tokens: Prefixes = ()
    eod: Annotated[
        Literal["appended", "absent"], Field(exclude_if=lambda eod: eod == "appended")
    ] = "appended"
    dataset: Annotated[HubDataset | None, ABSENT] = None
    column: Annotated[str, Field(exclude_if=lambda name: name == "text")] = "text"
    most_epochs: Annotated[Count | None, ABSENT] = None
    language: Remark = None
    licence: Remark = None
    origin: Remark = None

    @property
    def has_text(self) -> bool:
        return bool(self.files or self.embedded or self.tokens or self.dataset)


class Temperature(Section):
    """Mixture with shares proportional to tokens ** (1 / temperature)."""

    temperature: Annotated[float, Field(ge=1)]


MixtureRule = (
    Annotated[Literal["given", "natural"], types.WORD] | Annotated[Temperature, types.SECTION]
)


class DataPhase(PhaseStart):
    """Shares of a phase, from the first sample that starts at or after the phase's token."""

    shares: FrozenMapping[types.Share]


class Goldfish(Section):
    """Goldfish loss: exclude one of every ``one_in`` targets, to prevent memorization.

    A hash of the ``window_tokens`` tokens that end with the target selects the excluded
    targets, so a repeated passage excludes the same ones: :mod:`components.data.samples`.
    """

    one_in: Annotated[int, Field(ge=2)]
    window_tokens: Count


class DataSection(Section):
    """Sources, their shares of the training tokens, and the folder of prepared data.

    With a ``mixture`` other than ``given`` the shares follow from the sources' token counts.
    With ``packing: best_fit`` samples are rows of whole documents and padding
    (:mod:`components.data.packing`), else windows of the concatenated documents. ``skip``
    removes windows of samples from the run's order, as a guard does during a run. ``goldfish``
    and ``loss_after_eod: false`` exclude targets from the training loss; the latter those after
    an end of document, which no text of their document predicts.
    """

    keys_group = KeyGroup.MATHEMATICS

    shares: FrozenMapping[types.Share]
    mixture: Annotated[MixtureRule, types.BY_FORM]
    on_exhausted: Literal["refuse", "redistribute"]
    phases: FrozenMapping[DataPhase]
    sources: FrozenMapping[Source]
    preparation: OrNone[Preparation]
    folder: Annotated[types.Place, KeyGroup.MACHINE]
    tokenizer_folder: types.Place
    held_out_fraction: types.Fraction
    tokenizer_sample_bytes: Count | Literal["all"]
    document_mask: bool
    packing: Annotated[Packing, Field(exclude_if=lambda kind: kind == "concatenate")] = (
        "concatenate"
    )
    verify: Annotated[Literal["contents", "sizes"], KeyGroup.MACHINE]
    write_megatron: Annotated[bool, KeyGroup.MACHINE]
    skip: Annotated[tuple[SkipWindow, ...], Field(strict=False)]
    goldfish: Annotated[
        OrNone[Goldfish], Field(exclude_if=lambda goldfish: goldfish == "none")
    ] = "none"
    loss_after_eod: Annotated[bool, Field(exclude_if=lambda counted: counted)] = True

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources that this run reads or evaluates, in the order of the recipe."""
        if self.mixture != "given":
            return tuple(self.sources)
        later = (name for phase in self.phases.values() for name in phase.shares)
        return tuple(dict.fromkeys([*self.shares, *later]))

    @property
    def token_patterns(self) -> tuple[str, ...]:
        """Prefixes and patterns of all token files, which are read without a copy."""
        return tuple(pattern for source in self.sources.values() for pattern in source.tokens)
