"""Prepare the data of a recipe, or find it prepared: what a run records about its data."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from cluster.array import OnQueue
from cluster.user import read_user
from command.arguments import ROOT
from components.build import build
from components.config.recipe import Recipe
from components.config.schema.data import Preparation, Source
from components.data.files import HASHES, HashCache, HashFile, replace_atomically
from components.data.manifest import Manifest, StageRecord
from components.data.packing import pack_sources
from components.errors import RecipeError
from components.report.write import write_card_if_possible
from components.sharing.prepared import find_staged, note_prepared
from components.terminal import console, say
from components.train.sample_order import make_order
from data_prep.card import describe, unigram_losses
from data_prep.corpus import Corpus
from data_prep.prepare import prepare
from data_prep.sources import OpenSource
from data_prep.stages.executors import Executor, Local, OnRay
from data_prep.stages.passes import Passes
from data_prep.stages.tokens import InPasses
from data_prep.tokenise import Here, Tokenise, write_megatron

UNKNOWN = "unknown"
CARD, STAGES = "card.json", "stages"


def _print_stages(stages: Mapping[str, StageRecord], sources: Mapping[str, Source]) -> None:
    table = Table("stage", "source", box=None, pad_edge=False, header_style="bold")
    for column in ("documents in", "out"):
        table.add_column(column, justify="right")
    for column in ("languages", "removed or replaced"):
        table.add_column(column)
    for stage, record in stages.items():
        for source, counts in record.sources.items():
            documents = f"{counts.documents_in:,}", f"{counts.documents_out:,}"
            claimed = sources[source].language
            known = {name: n for name, n in counts.languages.items() if name != UNKNOWN}
            languages = _listed(known, most=3)  # without a claim, what there is most of
            if claimed is not None and known:
                languages = f"{known.get(claimed, 0) / sum(known.values()):.1%} {claimed}"
            changed = _listed({**counts.removed, **counts.replaced})
            table.add_row(stage, source, *documents, languages, changed)
    console(width=140).print(table)


def _listed(numbers: Mapping[str, int], most: int | None = None) -> str:
    pairs = sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0]))[:most]
    return ", ".join(f"{number:,} {name}" for name, number in pairs if number)


def prepare_data(
    recipe: Recipe, site: Mapping[str, Any], *, anew: bool = False
) -> dict[str, Any]:
    """Prepare what ``recipe`` reads, or find it prepared; return what a run keeps of it.

    The data's card is written where there is none, or ``anew``. Data that were staged here are
    taken as they are, and their raw text is not looked for, unless ``anew``.

    Raises:
        RecipeError: a source without text, or text that cannot be used.
    """
    staged = None if anew else find_staged(recipe)
    if staged is not None:
        return _keep_staged(recipe, staged)
    for name in recipe.data.names:
        source = recipe.data.sources.get(name)
        if source is None or not source.has_text:
            where = f"data.sources.{name}"
            remedy = f"set {where}.files=[...], or scale=mini for the embedded text"
            raise RecipeError(where, "no text is named for this source", remedy)
    stem, root = f"{recipe.name}-{recipe.scale.name}", Path(recipe.data.folder)
    hashed = HashCache(path=root / HASHES)
    sources, stages, tokenise = _cleaned(recipe, site, hashed)
    tokenizer = build(recipe.tokenizer, "tokenizer")
    folder, manifest = prepare(
        sources=sources,
        stages=stages,
        tokenise=tokenise,
        hashed=hashed,
        tokenizer=tokenizer,
        tokenizer_folder=recipe.data.tokenizer_folder,
        root=root,
        name=stem,
        held_out_fraction=recipe.data.held_out_fraction,
        tokenizer_sample_bytes=recipe.data.tokenizer_sample_bytes,
        sequence_length=max(cut.sequence_length for cut in recipe.clock.cuts()),
        verify=recipe.data.verify,
        say=say,
    )
    note_prepared(recipe, folder)
    if recipe.data.write_megatron:
        for prefix in write_megatron(folder, manifest):
            say(f"megatron: {prefix}")
    kept = _kept(recipe, folder, manifest)
    if anew or not (folder / CARD).exists():
        card = describe(
            name=stem,
            manifest=manifest,
            sources=recipe.data.sources,
            texts=sources,
            tokenizer=tokenizer,
            mixture=kept["mixture"],
            stages=root.absolute() / STAGES,
        )
        _write_card(card, folder)
    return kept


def _keep_staged(recipe: Recipe, staged: Path) -> dict[str, Any]:
    """Check data that were staged here, and return what a run keeps of them."""
    manifest = Manifest.read(staged)
    manifest.check_recipe(
        staged,
        names=recipe.data.names,
        vocab_size=int(recipe.tokenizer["vocab_size"]),
        tokens=recipe.data.token_patterns,
    )
    manifest.verify(staged, contents=recipe.data.verify == "contents")
    say(f"data: staged {staged}")
    return _kept(recipe, staged, manifest)


def _kept(recipe: Recipe, folder: Path, manifest: Manifest) -> dict[str, Any]:
    for cut in recipe.clock.cuts():
        if cut.packed:
            length = cut.sequence_length
            for line in pack_sources(folder, manifest, recipe.data.names, length):
                say(line)
    drawn = make_order(recipe, manifest, folder).drawn(recipe.total_samples)
    shares = {name: source.promised_share for name, source in drawn.items()}
    return {
        "folder": str(folder.resolve()),
        "key": manifest.key,
        "unigram": unigram_losses(folder, manifest, shares, recipe.shape.padded_vocab_size),
        "mixture": {name: asdict(source) for name, source in drawn.items()},
    }


def _write_card(card: Mapping[str, Any], folder: Path) -> None:
    """Write the card beside the token files; of several recipes the last one's stays."""
    text = json.dumps(card, indent=1, ensure_ascii=False) + "\n"
    with replace_atomically(folder / CARD) as file:
        file.write(text.encode(errors="replace"))
    page = write_card_if_possible(card, (folder / CARD).with_suffix(".html"), say)
    say(f"card: {page or folder / CARD}")


def _cleaned(
    recipe: Recipe, site: Mapping[str, Any], hashed: HashFile
) -> tuple[Mapping[str, Source | OpenSource], Mapping[str, StageRecord], Tokenise]:
    """Clean the sources if the recipe says how; they are tokenised where they are cleaned."""
    raw = {name: recipe.data.sources[name] for name in recipe.data.names}
    preparation = recipe.data.preparation
    if not isinstance(preparation, Preparation):
        return raw, {}, Here()
    texts = {name: source for name, source in raw.items() if not source.tokens}
    executor = _executor(recipe, preparation, site)
    root = Path(recipe.data.folder).absolute() / STAGES
    passes = Passes(root=root, executor=executor, say=say)
    corpus = Corpus(sources=texts, preparation=preparation, passes=passes, hashed=hashed)
    cleaned = corpus.clean()
    _print_stages(cleaned.stages, raw)
    return {**raw, **cleaned.sources}, cleaned.stages, InPasses(passes=passes)


def _executor(recipe: Recipe, preparation: Preparation, site: Mapping[str, Any]) -> Executor:
    if preparation.executor == "array":
        user = read_user(recipe.cluster.name, site)
        return OnQueue(recipe=recipe, preparation=preparation, user=user, repository=ROOT)
    if preparation.executor == "ray":
        return OnRay(workers=preparation.workers)
    return Local(workers=preparation.workers, leave_failures=False)
