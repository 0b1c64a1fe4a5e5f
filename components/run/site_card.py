"""Site cards: ``card.json``, what one short run measured on a machine, for others to read.

A received card is untrusted data. Its texts have a narrow alphabet, its numbers ranges, and its
lists a maximum length. The hash shows edits and damage, not who wrote the card.
"""

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from components.config.recipe import Recipe
from components.config.schema.cluster import PRECISIONS
from components.config.schema.types import Count, Section
from components.config.validation import read_section
from components.errors import RecipeError
from components.json_file import parse_json, read_bounded

FILE_NAME = "card.json"
MOST_BYTES = 1 << 20
_NO_WORD = re.compile(r"[^A-Za-z0-9().,_+: -]+")
_MOST_LETTERS = 80
CardName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]{0,63}$")]
Words = Annotated[str, Field(pattern=rf"^[A-Za-z0-9().,_+: -]{{1,{_MOST_LETTERS}}}$")]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, Field(pattern=r"^([0-9a-f]{40,64}|absent)$")]
CardCount = Annotated[int, Field(gt=0, le=10**7)]
Bytes = Annotated[int, Field(gt=0, le=10**15)]
ACCELERATOR = "measured on accelerators"
CPU = "measured on CPUs: no measurement of an accelerator, and no row of the ledger"
_SQUARE = "2 n^3 FLOPs of a square product over the median time"
_BUS = "bus bandwidth over the median time, all groups of a node at once"
_STEP = "median step after the first five"
_DISK = "all ranks, from the start of the save until the checkpoint is complete"
# By name: unit, convention, and the largest credible value.
FIGURES: Mapping[str, tuple[str, str, float]] = {
    "preflight": ("s", "checks of all nodes before the ranks start", 1e5),
    "product": ("TFLOP/s", _SQUARE, 1e6),
    "copy": ("GB/s", "bytes read and written over the median time", 1e6),
    "all_reduce": ("GB/s", f"{_BUS}; factor 2 (n - 1) / n", 1e6),
    "all_gather": ("GB/s", f"{_BUS}; factor (n - 1) / n", 1e6),
    "latency": ("s", "median all-reduce of one number", 1e3),
    "step": ("s", _STEP, 1e5),
    "rate_full": ("TFLOP/s", f"per device, whole attention, no recomputation; {_STEP}", 1e6),
    "rate_causal": (
        "TFLOP/s",
        f"per device, half of attention, no recomputation; {_STEP}",
        1e6,
    ),
    "peak_memory": ("bytes", "largest allocation on the first rank", 1e15),
    "checkpoint_size": ("bytes", "all files of one checkpoint", 1e15),
    "checkpoint": ("s", _DISK, 1e5),
    "checkpoint_stall": ("s", "time without training, caused by one checkpoint", 1e5),
    "start": ("s", "from the ranks' start to the first step", 1e5),
    "restart": ("s", "from the ranks' start to the first step after the checkpoint", 1e5),
    "restart_load": ("s", "reading the checkpoint, part of the restart", 1e5),
}


class CardFigure(Section):
    """One measurement. Unit and convention follow from the name in :data:`FIGURES`."""

    name: Literal[tuple(FIGURES)]  # type: ignore[valid-type]  # mypy requires literal words
    value: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    unit: str
    convention: str
    dtype: Literal[tuple(PRECISIONS)] | None = None  # type: ignore[valid-type]  # as above
    nodes: CardCount | None = None
    ranks: CardCount | None = None
    bytes: Bytes | None = None

    @model_validator(mode="after")
    def _check_convention(self) -> "CardFigure":
        unit, convention, most = FIGURES[self.name]
        if (self.unit, self.convention) != (unit, convention):
            problem = f"{self.name} has another unit or convention than this version"
            raise RecipeError(
                "figures", problem, "read the card with the version that wrote it"
            )
        if self.value > most:
            problem = f"{self.name}={self.value:g} {unit}, but at most {most:g} is credible"
            raise RecipeError("figures", problem, "measure again")
        return self


class CardSizes(Section):
    """Sizes of the run that differ from its recipe, and the layout of its ranks."""

    nodes: CardCount
    devices_per_node: CardCount
    data: CardCount
    tensor: CardCount
    pipeline: CardCount
    expert: CardCount
    context: CardCount
    num_layers: CardCount
    microbatch_sequences: CardCount
    global_batch_tokens: Count

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> "CardSizes":
        """Return the sizes of a composed run."""
        degrees = recipe.parallelism
        return cls(
            nodes=recipe.cluster.nodes,
            devices_per_node=recipe.cluster.devices_per_node,
            **degrees.axis_degrees,
            num_layers=recipe.model["num_layers"],
            microbatch_sequences=degrees.microbatch_sequences,
            global_batch_tokens=recipe.budget.global_batch_tokens,
        )


class CardRun(Section):
    """The measured run. The two hashes are the fingerprints of its recipe."""

    recipe: CardName
    cluster: CardName
    scale: CardName
    mathematics: Hash
    layout: Hash
    commit: Commit
    sizes: CardSizes


class CardMachine(Section):
    """The hardware as the first rank sees it. It has no host name."""

    kind: Literal["cpu", "cuda", "rocm", "xpu"]
    device: Words
    memory_bytes: Bytes
    processor: Words
    cores: CardCount


class SiteCard(Section):
    """Content of ``card.json``."""

    card: Literal[1]
    notice: str
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")]
    run: CardRun
    versions: Annotated[Mapping[CardName, Words], Field(max_length=16)]
    machine: CardMachine
    figures: Annotated[tuple[CardFigure, ...], Field(strict=False, max_length=96)]
    sha256: Hash

    @model_validator(mode="after")
    def _check_notice(self) -> "SiteCard":
        if self.notice != notice_of(self.machine.kind):
            problem = f"the notice contradicts machine.kind={self.machine.kind}"
            raise RecipeError("notice", problem, "measure again with this version")
        return self

    @property
    def is_of_accelerator(self) -> bool:
        return self.machine.kind != "cpu"

    def iter_figures(self, name: str) -> Iterator[CardFigure]:
        """Yield the measurements with a name."""
        return (figure for figure in self.figures if figure.name == name)

    def find_value(self, name: str) -> float | None:
        """Return the value of a measurement that a card has at most once."""
        return next((figure.value for figure in self.iter_figures(name)), None)


def notice_of(kind: str) -> str:
    """Return the notice of a card that was measured on this ``kind`` of device."""
    return CPU if kind == "cpu" else ACCELERATOR


def clean_words(text: str) -> str:
    """Replace the signs of a device's name that a card does not allow, as ``/`` or ``<``."""
    return _NO_WORD.sub(" ", text).strip()[:_MOST_LETTERS] or "unknown"


def make_figure(name: str, value: float, **details: Any) -> dict[str, Any]:
    """Return the tree of a measurement, rounded to four digits: more were not measured."""
    unit, convention, _ = FIGURES[name]
    rounded = float(f"{value:.4g}")
    return {"name": name, "value": rounded, "unit": unit, "convention": convention, **details}


def render_card(tree: Mapping[str, Any]) -> str:
    """Return the text of a card with this content, checked, with its hash."""
    sealed = {**tree, "sha256": _digest(tree)}
    read_section(SiteCard, sealed, FILE_NAME)
    return json.dumps(sealed, indent=1) + "\n"


def _digest(tree: Mapping[str, Any]) -> str:
    content = {key: value for key, value in tree.items() if key != "sha256"}
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_card(file: Path, key: str) -> SiteCard:
    """Read and verify a received card; ``key`` is the option that named the file.

    Raises:
        RecipeError: the file is a link or no card, was edited or damaged, or has a value out of
            its range.
    """
    if file.is_symlink():
        raise RecipeError(key, f"{file} is a link", "name the file itself")
    try:
        raw = read_bounded(file, MOST_BYTES)
        tree = parse_json(raw, finite=True)
    except (OSError, ValueError) as error:
        problem = f"{file} cannot be read as a card: {error}"
        raise RecipeError(key, problem, "request the file again") from None
    if not isinstance(tree, dict) or "card" not in tree:
        remedy = "write a card with card=true"
        raise RecipeError(key, f"{file} is not a card", remedy)
    # The text is compared, too: JSON allows a key twice, and only the last one would count.
    whole = json.dumps({**tree, "sha256": _digest(tree)}, indent=1)
    if "".join(whole.split()) != "".join(raw.decode().split()):
        problem = f"{file} was edited or damaged: its content does not match its sha256"
        raise RecipeError(key, problem, "request the file again")
    return read_section(SiteCard, tree, file.name)
