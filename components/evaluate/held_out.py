"""Loss of one checkpoint on held-out text, as training judges it, and the file of all answers.

``evaluation/tokens-....json`` of a run folder has a section for each question that was asked of
the checkpoint; asked again, its section is replaced and the others stay.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from sys import maxsize
from typing import Any

import torch

from components.checkpoint.loading import CheckpointChoice
from components.checkpoint.metadata import Marker
from components.config.schema.recipe import Recipe
from components.convert.reading import load_weights
from components.data.manifest import Manifest, SourceRecord
from components.data.samples import HeldOutWindows
from components.data.token_file import TokenFileRecord
from components.distributed.devices import compute_dtype, device_type
from components.errors import RecipeError
from components.evaluate.text_loss import Judge, LossTally, read_text_bytes
from components.report.measurements import EVALUATE_AGAIN
from components.run.folder import RunFolder
from components.run.provenance import describe_environment
from components.run.records import read_checked
from components.run.reported import EvaluationRecord

Tree = dict[str, Any]
_FOLDER = "evaluation"
_FORMAT = 1
_CONVENTIONS = {
    "loss": "nats a predicted token, mean",
    "perplexity": "exp(loss), a token of this tokenizer",
    "bits_per_byte": "summed loss / ln 2 / bytes of normalized UTF-8 text",
    "tokens": "ends of documents are predicted and counted; windows of sequence_length, packed",
    "documents": "those of which a token was predicted",
    "vocabulary": "rows added for training are in the softmax, as in training",
}
_COLLECTED = ("texts", "tasks")  # an entry each, and each is asked for by itself


def keep(folder: RunFolder, recipe: Recipe, marker: Marker, section: Tree) -> Tree:
    """Put ``section`` into the file of this checkpoint, and return all that it holds."""
    name = f"{_FOLDER}/{marker.name}.json"
    file = folder.path / name
    file.parent.mkdir(exist_ok=True)
    before: Tree = {}
    if file.exists():
        before = read_checked(file, EvaluationRecord, finite=False, remedy=EVALUATE_AGAIN)
    after = before | {
        "format": _FORMAT,
        "checkpoint": marker.name,
        "step": marker.progress.step,
        "tokens_trained": marker.progress.tokens,
        "recipe": recipe.name,
        "scale": recipe.scale.name,
        "fingerprint": recipe.fingerprint(),
        "conventions": _CONVENTIONS,
    }
    for key, value in section.items():
        after[key] = before.get(key, {}) | value if key in _COLLECTED else value
    folder.write_json(name, after)
    return after


def versions(*packages: str) -> Tree:
    """Name the commit and the packages that computed something."""
    found = describe_environment([])
    kept = {key: found[key] for key in ("commit", "dirty", "python")}
    return kept | {name: version(name) for name in ("torch", *packages)}


def read_manifest(folder: RunFolder) -> tuple[Path, Manifest]:
    """Open the prepared data of a run.

    Raises:
        RecipeError: it is not there any more, or is another.
    """
    kept = folder.data
    data = Path(kept.folder)
    manifest = Manifest.read(data)
    if manifest.key != kept.key:
        problem = f"its key is {manifest.key}, the run read {kept.key}"
        raise RecipeError(str(data), problem, f"put the run's data back into {data.parent}")
    return data, manifest


def open_judge(
    recipe: Recipe, chosen: CheckpointChoice, data: Path, manifest: Manifest
) -> Judge:
    """Load the checkpoint onto this machine's device, whatever layout wrote it."""
    device = torch.device(device_type("auto"))
    eod_id = manifest.tokenizer.eod_id
    prefix = bool(recipe.tokenizer.get("add_dummy_prefix"))
    return Judge(
        decoder=load_weights(chosen.checkpoint, chosen.marker, recipe.model).to(device),
        device=device,
        dtype=compute_dtype(recipe.precision.compute, device),
        eod_id=eod_id,
        parts_documents=recipe.data.document_mask,
        most_rows=recipe.parallelism.microbatch_sequences,
        text_bytes=read_text_bytes(data, eod_id=eod_id, dummy_prefix=prefix),
    )


def judge_held_out(
    judge: Judge, recipe: Recipe, chosen: CheckpointChoice, data: Path, manifest: Manifest
) -> Tree:
    """Judge the windows that training evaluates on, ``max_windows_per_source`` of each source.

    ``mean_over_sources`` is the figure of the run's held-out loss; ``all`` counts every token
    alike.
    """
    most = recipe.evaluation.max_windows_per_source
    tallies = _tallies(judge, data, manifest, recipe.budget.sequence_length, most)
    losses = [one.nats / one.tokens for one in tallies.values() if one.tokens]
    return {
        **_setting(judge),
        "data": manifest.key,
        "max_windows_per_source": most,
        "held_out_tokens": {
            name: source.held_out_tokens for name, source in manifest.sources.items()
        },
        "by_source": {name: one.figures() for name, one in tallies.items()},
        "by_language": _by_language(recipe, tallies),
        "all": sum(tallies.values(), LossTally()).figures(),
        "mean_over_sources": fmean(losses) if losses else None,
        "logged_in_training": chosen.marker.held_out_loss,
    }


def judge_text(
    judge: Judge, recipe: Recipe, folder: Path, manifest: Manifest, record: TokenFileRecord
) -> Tree:
    """Judge all of one token file in ``folder``, packed as training packs."""
    only = SourceRecord(inputs=(), documents=record.documents, train=(), held_out=(record,))
    alone = replace(manifest, sources={record.name: only})
    length = recipe.budget.sequence_length
    tally = _tallies(judge, folder, alone, length, maxsize)[record.name]
    return {**_setting(judge), **tally.figures()}


def _tallies(
    judge: Judge, folder: Path, manifest: Manifest, length: int, most: int
) -> dict[str, LossTally]:
    windows = HeldOutWindows(
        folder=folder, manifest=manifest, sequence_length=length, max_windows=most
    )
    return {name: judge.tally(windows.windows(name)) for name in windows.sources}


def _by_language(recipe: Recipe, tallies: Mapping[str, LossTally]) -> Tree:
    """Add up the sources of each language; nothing where the recipe states none."""
    sums: dict[str, LossTally] = {}
    for name, tally in tallies.items():
        source = recipe.data.sources.get(name)
        if source is not None and source.language is not None:
            sums[source.language] = sums.get(source.language, LossTally()) + tally
    return {language: tally.figures() for language, tally in sorted(sums.items())}


def _setting(judge: Judge) -> Tree:
    dtype = str(judge.dtype).removeprefix("torch.")
    return {"device": str(judge.device), "compute": dtype, "versions": versions()}
