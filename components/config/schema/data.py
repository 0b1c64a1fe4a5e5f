"""Schema of ``data``: sources, mixture, preparation of a corpus, near duplicates."""

from typing import Annotated, Literal

from pydantic import Field, PlainSerializer

from components.config.schema import types
from components.config.schema.document_steps import DocumentSteps
from components.config.schema.phases import ABSENT, Packing, PhaseStart
from components.config.schema.types import Count, FrozenMapping, KeyGroup, OrNone, Section


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
    """What is done to one document, then the duplicates; and how, which changes no byte.

    ``workers`` are processes on one machine, ``most_jobs`` elements of a job array, each on a
    node of its own. A task is about ``shard_bytes`` of input. Without ``wait`` a job array is
    submitted and the command ends; the same command goes on with what the array has done.
    Personal data is removed last, from what is kept.
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
# The first number in the run's order, and how many from there on.
Window = Annotated[
    tuple[Annotated[int, Field(ge=0)], Count], Field(strict=False), PlainSerializer(list)
]


class HubDataset(Section):
    """What ``datasets.load_dataset`` opens: a name on the hub, or a folder of data files."""

    path: types.Place
    name: str | None = None
    split: str
    revision: str | None = None
    streaming: bool = False


Remark = Annotated[str | None, ABSENT, KeyGroup.RECORD]


class Source(Section):
    """Where the text of one source is: files, a dataset, token files or an embedded corpus.

    All may be absent: a published corpus that cannot be shipped has a share but no text, and
    ``stand_in`` names the embedded corpus that takes its place in a miniature. What a source
    does not use is left out of the settled recipe.

    ``column`` names the text in records, ``tokens`` the prefixes of Megatron's ``.bin`` and
    ``.idx`` files, ``eod`` whether each of their documents ends with the end-of-document id.
    ``most_epochs`` limits how often a run reads the source: up to 4 times was nearly as good as
    new text in Muennighoff et al. 2023 (arXiv 2305.16264, abstract). ``language`` (ISO 639-1)
    is what the text claims to be in; a preparation that tells languages shows how much is.
    ``licence`` and ``origin`` are for the data card: under which terms, and from where.
    """

    keys_group = KeyGroup.MATHEMATICS

    files: types.Places = ()
    embedded: str | None = None
    stand_in: Annotated[str | None, KeyGroup.RECORD] = None
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
    """Shares in proportion to tokens ** (1 / temperature)."""

    temperature: Annotated[float, Field(ge=1)]


Mixture = (
    Annotated[Literal["given", "natural"], types.WORD] | Annotated[Temperature, types.SECTION]
)


class DataPhase(PhaseStart):
    """Other shares, from the first sample on that begins at the phase's token or after it."""

    shares: FrozenMapping[types.Share]


class Goldfish(Section):
    """Leave one of every ``one_in`` targets out of the loss, so that no text is learned whole.

    Which ones is a hash of the ``window_tokens`` that end with the target, so of a passage that
    comes again the same: :mod:`components.data.samples`.
    """

    one_in: Annotated[int, Field(ge=2)]
    window_tokens: Count


class DataSection(Section):
    """Which sources, in which shares of the training tokens, prepared where.

    With a ``mixture`` other than ``given`` the shares follow from the tokens that are found.
    With ``packing: best_fit`` samples are rows of whole documents and padding
    (:mod:`components.data.packing`), else windows of the documents joined.
    ``skip`` leaves windows of samples out of the run's order, as a guard does in mid-run.
    ``goldfish`` and ``loss_after_eod`` say which targets training does not count: of the latter
    those that follow an end of document, which are no part of a text that was read.
    """

    keys_group = KeyGroup.MATHEMATICS

    shares: FrozenMapping[types.Share]
    mixture: Annotated[Mixture, types.BY_FORM]
    surplus: Literal["refused", "dealt"]
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
    skip: Annotated[tuple[Window, ...], Field(strict=False)]
    goldfish: Annotated[OrNone[Goldfish], Field(exclude_if=lambda one: one == "none")] = "none"
    loss_after_eod: Annotated[bool, Field(exclude_if=lambda one: one)] = True

    @property
    def names(self) -> tuple[str, ...]:
        """The sources that this run reads or judges, in the order of the recipe."""
        if self.mixture != "given":
            return tuple(self.sources)
        later = (name for phase in self.phases.values() for name in phase.shares)
        return tuple(dict.fromkeys([*self.shares, *later]))

    @property
    def token_patterns(self) -> tuple[str, ...]:
        """The prefixes and patterns of all token files that are read in place."""
        return tuple(one for source in self.sources.values() for one in source.tokens)
