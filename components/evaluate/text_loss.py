"""Loss and bits per byte of a checkpoint on text, and the evaluation result file.

The loss is computed as in training. Token files do not store the bytes of documents, so bytes
are counted from the tokenizer's pieces: UTF-8 text after normalization. The end-of-document
token, which preparation adds, counts 0 bytes; other special pieces count as written.

With N the summed loss of the predicted tokens in nats, T their number and B the bytes of their
text: loss = N / T, perplexity = exp(N / T), bits per byte = N / (B ln 2). Only bits per
byte compares across tokenizers (Gao et al. 2020, "The Pile", arXiv 2101.00027, section 3.1).

``evaluation/tokens-....json`` in a run folder has one section per kind of evaluation of the
checkpoint. A repeated evaluation replaces its section and keeps the others.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from sys import float_info, maxsize
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer
from torch import Tensor, nn

from components.checkpoint.choice import CheckpointChoice
from components.checkpoint.metadata import Marker, RunProgress
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.convert.reading import load_weights
from components.convert.tokenizer import FETCH
from components.data.byte_bpe import FILE_NAME as BYTE_BPE
from components.data.manifest import Manifest, SourceRecord
from components.data.samples import HeldOutWindows
from components.data.token_file import TokenFileRecord
from components.data.tokenizer_file import open_engine, open_pieces
from components.data.unigram import FILE_NAME as UNIGRAM
from components.distributed.devices import compute_dtype, device_type
from components.engine.microbatch_forward import autocast_to, number_documents
from components.errors import RecipeError
from components.json_file import replace_nonfinite
from components.report.measurements import EVALUATE_AGAIN
from components.run.folder import RunFolder
from components.run.ownership import is_own
from components.run.provenance import describe_environment
from components.run.records import read_checked
from components.run.reported import EvaluationRecord
from components.train.batches import RankBatches
from components.train.held_out import weighted_mean
from components.train.validation_batches import stack_equal_lengths

ResultTree = dict[str, Any]
_CONVENTIONS = {
    "loss": "nats a predicted token, mean",
    "perplexity": "exp(loss), a token of this tokenizer",
    "bits_per_byte": "summed loss / ln 2 / bytes of normalized UTF-8 text",
    "tokens": "ends of documents are predicted and counted; windows of sequence_length, packed",
    "documents": "documents with at least one predicted token",
    "vocabulary": "rows added for training are in the softmax, as in training",
}
_BY_NAME = ("texts", "tasks", "scores")


@dataclass(frozen=True, kw_only=True)
class TextBytes:
    """Bytes by token id; ``prefix`` is the bytes that the tokenizer adds before a document."""

    by_id: npt.NDArray[np.int64]
    prefix: int
    eod_id: int

    def count_bytes(self, rows: npt.NDArray[np.int64]) -> int:
        """Count the text bytes of the predicted tokens: each row except its first token."""
        begun = int((rows[:, :-1] == self.eod_id).sum())
        return int(self.by_id[rows[:, 1:]].sum()) - self.prefix * begun


def read_text_bytes(folder: Path, *, eod_id: int) -> TextBytes | None:
    """Read bytes per token id from the tokenizer in ``folder``; encoding "x" gives the prefix.

    Returns ``None`` without a tokenizer, or if the tokenizer has no byte pieces: the length of
    text that its unknown piece replaces is not known.
    """
    if (folder / UNIGRAM).is_file():
        pieces = open_pieces(folder / UNIGRAM, FETCH)
        by_id, encoded = _of_unigram(pieces), pieces.encode("x")
    elif (folder / BYTE_BPE).is_file():
        engine = open_engine(folder / BYTE_BPE, FETCH)
        by_id = _of_byte_bpe(engine)
        encoded = engine.encode("x", add_special_tokens=False).ids
    else:
        return None
    if by_id is None:
        return None
    by_id[eod_id] = 0
    return TextBytes(by_id=by_id, prefix=int(by_id[encoded].sum()) - 1, eod_id=eod_id)


def _of_unigram(pieces: SentencePieceProcessor) -> npt.NDArray[np.int64] | None:
    ids = range(pieces.piece_size())
    if not any(pieces.is_byte(index) for index in ids):
        return None
    # U+2581 is SentencePiece's mark for a space.
    texts = [pieces.id_to_piece(index).replace("\u2581", " ") for index in ids]
    lengths = [len(text.encode()) for text in texts]
    return np.array([1 if pieces.is_byte(index) else lengths[index] for index in ids])


def _of_byte_bpe(engine: Tokenizer) -> npt.NDArray[np.int64]:
    """Count bytes per id: a learnt piece has one character per byte, an added piece is text."""
    added = {index: token.content for index, token in engine.get_added_tokens_decoder().items()}
    lengths = {index: len(piece) for piece, index in engine.get_vocab().items()}
    lengths |= {index: len(text.encode()) for index, text in added.items()}
    return np.array([lengths[index] for index in range(len(lengths))])


@dataclass(frozen=True, kw_only=True)
class LossTally:
    """Sums over predicted tokens; ``nats`` is the loss, ``text_bytes`` ``None`` if unknown."""

    nats: float = 0.0
    tokens: int = 0
    text_bytes: int | None = 0
    documents: int = 0

    def __add__(self, other: "LossTally") -> "LossTally":
        known = self.text_bytes is not None and other.text_bytes is not None
        return LossTally(
            nats=self.nats + other.nats,
            tokens=self.tokens + other.tokens,
            text_bytes=(self.text_bytes or 0) + (other.text_bytes or 0) if known else None,
            documents=self.documents + other.documents,
        )

    def compute_figures(self) -> dict[str, Any]:
        """Return sums and ratios by their keys in the result file; ratios need a token."""
        loss = self.nats / self.tokens if self.tokens else None
        bits = self.nats / math.log(2)
        return {
            "loss": loss,
            "perplexity": None if loss is None else compute_perplexity(loss),
            "bits_per_byte": bits / self.text_bytes if self.text_bytes else None,
            "tokens": self.tokens,
            "bytes": self.text_bytes,
            "documents": self.documents,
        }


def compute_perplexity(loss: float) -> float:
    """Return exp(loss); NaN or infinite for a model that diverged."""
    return math.inf if loss > math.log(float_info.max) else math.exp(loss)


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Loss as in training, on batches of ``most_rows`` windows of equal length.

    ``parts_documents`` restricts attention to one document.
    """

    decoder: nn.Module
    device: torch.device
    dtype: torch.dtype
    eod_id: int
    parts_documents: bool
    most_rows: int
    text_bytes: TextBytes | None

    @torch.no_grad()
    def tally_windows(self, windows: Iterable[Tensor]) -> LossTally:
        """Sum the loss over consecutive windows of shape [length + 1], except first tokens."""
        self.decoder.eval()
        total, last = LossTally(), self.eod_id
        for rows in stack_equal_lengths(windows, self.most_rows):
            total += self._tally(rows)
            last = int(rows[-1, -1])
        # The last document may lack its end.
        return total + LossTally(documents=int(last != self.eod_id))

    def _tally(self, rows: Tensor) -> LossTally:
        targets, tokens = rows[:, 1:], rows.to(self.device)
        inputs = tokens[:, :-1]
        documents = number_documents(inputs, self.eod_id) if self.parts_documents else None
        with autocast_to(self.dtype, self.device):
            loss: Tensor = self.decoder(inputs, documents=documents, targets=tokens[:, 1:])
        return LossTally(
            nats=loss.item() * targets.numel(),
            tokens=targets.numel(),
            text_bytes=None
            if self.text_bytes is None
            else self.text_bytes.count_bytes(rows.numpy()),
            documents=int((targets == self.eod_id).sum()),
        )


def write_section(
    folder: RunFolder, recipe: Recipe, marker: Marker, section: ResultTree
) -> ResultTree:
    """Write ``section`` into this checkpoint's result file and return the whole file.

    A figure that is not finite is stored as null, and ``not_finite`` contains its key.
    """
    name = f"evaluation/{marker.folder_name}.json"
    file = folder.path / name
    file.parent.mkdir(exist_ok=True)
    before: ResultTree = {}
    if file.exists():
        before = read_checked(file, EvaluationRecord, finite=False, remedy=EVALUATE_AGAIN)
    after = before | {
        "format": 1,
        "checkpoint": marker.folder_name,
        "step": marker.progress.step,
        "tokens_trained": marker.progress.tokens,
        "recipe": recipe.name,
        "scale": recipe.scale.name,
        "fingerprint": compute_fingerprint(recipe),
        "conventions": _CONVENTIONS,
    }
    for key, value in section.items():
        # Texts, tasks and lists are evaluated one by one, so their entries are merged.
        if key in _BY_NAME:
            answers = {name: replace_nonfinite(answer) for name, answer in value.items()}
            after[key] = before.get(key, {}) | answers
        else:
            after[key] = replace_nonfinite(value)
    folder.write_json(name, after)
    return after


def list_versions(*packages: str) -> ResultTree:
    """Return the commit, the Python version and the versions of ``packages`` and torch."""
    environment = describe_environment([])
    commit = {key: environment[key] for key in ("commit", "dirty", "python")}
    return commit | {name: version(name) for name in ("torch", *packages)}


def read_manifest(folder: RunFolder, recipe: Recipe) -> tuple[Path, Manifest]:
    """Read the manifest of a run's prepared data; RecipeError if their key differs."""
    recorded = folder.data_record
    data = Path(recorded.folder)
    manifest = Manifest.from_folder(data)
    if manifest.key != recorded.key:
        problem = f"its key is {manifest.key}, the run read {recorded.key}"
        raise RecipeError(str(data), problem, f"put the run's data back into {data.parent}")
    own = is_own(folder.recipe)  # for another user's run, read files below this folder only
    manifest.check_recipe(
        data,
        names=recipe.data.source_names,
        vocab_size=int(recipe.tokenizer["vocab_size"]),
        tokens=recipe.data.token_patterns if own else ("*",),
        root="*" if own else None,
    )
    return data, manifest


def open_judge(
    recipe: Recipe, chosen: CheckpointChoice, data: Path, manifest: Manifest
) -> Judge:
    """Load a checkpoint of any parallel layout onto this machine's device."""
    device, eod_id = torch.device(device_type("auto")), manifest.tokenizer.eod_id
    return Judge(
        decoder=load_weights(chosen.checkpoint, chosen.marker, recipe.model).to(device),
        device=device,
        dtype=compute_dtype(recipe.precision.compute, device),
        eod_id=eod_id,
        parts_documents=recipe.data.document_mask,
        most_rows=recipe.parallelism.microbatch_sequences,
        text_bytes=read_text_bytes(data, eod_id=eod_id),
    )


def judge_held_out(
    judge: Judge, recipe: Recipe, chosen: CheckpointChoice, data: Path, manifest: Manifest
) -> ResultTree:
    """Compute the loss on training's held-out windows, ``max_windows_per_source`` per source.

    ``weighted_as_mixture`` and ``mean_over_sources`` are means as in the run's held-out loss;
    ``all`` weights every token equally.
    """
    most = recipe.evaluation.max_windows_per_source
    tallies = _tallies(judge, data, manifest, recipe.budget.sequence_length, most)
    losses = {
        name: tally.nats / tally.tokens for name, tally in tallies.items() if tally.tokens
    }
    shares = _shares(recipe, chosen.marker.progress, data, manifest)
    is_whole = all(name in losses for name, share in shares.items() if share > 0)
    return {
        **_setting(judge),
        "data": manifest.key,
        "max_windows_per_source": most,
        "held_out_tokens": {
            key: source.held_out_tokens for key, source in manifest.sources.items()
        },
        "by_source": {name: tally.compute_figures() for name, tally in tallies.items()},
        "by_language": _by_language(recipe, tallies),
        "all": sum(tallies.values(), LossTally()).compute_figures(),
        "shares": shares,
        "weighted_as_mixture": weighted_mean(losses, shares) if is_whole else None,
        "mean_over_sources": fmean(losses.values()) if losses else None,
        "logged_in_training": chosen.marker.held_out_loss,
    }


def _shares(
    recipe: Recipe, progress: RunProgress, data: Path, manifest: Manifest
) -> dict[str, float]:
    """Return the mixture's shares at a checkpoint, after the steps that guards skipped."""
    batches = RankBatches(recipe=recipe, folder=data, manifest=manifest, rank=0)
    skipped = progress.guard["skipped"] if progress.guard else ()
    batches.set_skipped([*recipe.data.skip, *((first, count) for first, count in skipped)])
    return batches.shares_after(progress.step)


def judge_text(
    judge: Judge, recipe: Recipe, folder: Path, manifest: Manifest, record: TokenFileRecord
) -> ResultTree:
    """Compute the loss on one token file in ``folder``, packed as in training."""
    only = SourceRecord(inputs=(), documents=record.documents, train=(), held_out=(record,))
    alone = replace(manifest, sources={record.name: only})
    tallies = _tallies(judge, folder, alone, recipe.budget.sequence_length, maxsize)
    return {**_setting(judge), **tallies[record.name].compute_figures()}


def _tallies(
    judge: Judge, folder: Path, manifest: Manifest, length: int, most: int
) -> dict[str, LossTally]:
    held_out = HeldOutWindows(
        folder=folder, manifest=manifest, sequence_length=length, max_windows=most
    )
    return {
        name: judge.tally_windows(held_out.iter_windows(name)) for name in held_out.source_names
    }


def _by_language(recipe: Recipe, tallies: Mapping[str, LossTally]) -> ResultTree:
    """Return the figures by language; sources without a language are skipped."""
    sums: dict[str, LossTally] = {}
    for name, tally in tallies.items():
        source = recipe.data.sources.get(name)
        if source is not None and source.language is not None:
            sums[source.language] = sums.get(source.language, LossTally()) + tally
    return {language: tally.compute_figures() for language, tally in sorted(sums.items())}


def _setting(judge: Judge) -> ResultTree:
    dtype = str(judge.dtype).removeprefix("torch.")
    return {"device": str(judge.device), "compute": dtype, "versions": list_versions()}
