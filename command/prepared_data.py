"""Prepare the data of a recipe, or find prepared data; return the run's record of its data."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any

from cluster.array import OnQueue
from cluster.user import read_user
from command.arguments import ROOT, Arguments
from components.build import build_node
from components.config.recipe import Recipe
from components.config.schema.data import Preparation, Source
from components.data.files import HASHES, HashCache, HashFile, replace_atomically
from components.data.manifest import FILE_NAME as MANIFEST
from components.data.manifest import Manifest, StageRecord
from components.data.packing import pack_sources
from components.errors import RecipeError
from components.report.tables import Grid, terminal_table
from components.report.write import write_card_if_possible
from components.sharing.prepared import find_staged, note_prepared
from components.terminal import create_console, log_line
from components.train.sample_order import make_order
from data_prep.card import build_card, unigram_losses
from data_prep.corpus import Corpus
from data_prep.prepare import prepare_folder
from data_prep.sources import OpenSource
from data_prep.stages.runner import Executor, Local, OnRay, StageRunner
from data_prep.stages.tokens import StagedTokenise
from data_prep.tokenise import LocalTokenise, Tokenise, write_megatron

UNKNOWN = "unknown"
CARD, STAGES = "card.json", "stages"


def _print_stages(stages: Mapping[str, StageRecord], sources: Mapping[str, Source]) -> None:
    columns = ("stage", "source", "documents in", "out", "languages", "removed or replaced")
    rows = []
    for stage, record in stages.items():
        for source, counts in record.sources.items():
            documents = f"{counts.documents_in:,}", f"{counts.documents_out:,}"
            claimed = sources[source].language
            known = {name: n for name, n in counts.languages.items() if name != UNKNOWN}
            languages = _listed(known, most=3)  # by default the most frequent
            if claimed is not None and known:
                languages = f"{known.get(claimed, 0) / sum(known.values()):.1%} {claimed}"
            changed = _listed({**counts.removed, **counts.replaced})
            rows.append((stage, source, *documents, languages, changed))
    create_console(width=140).print(
        terminal_table(Grid(columns=columns, rows=rows, text_columns=2))
    )


def _listed(numbers: Mapping[str, int], most: int | None = None) -> str:
    pairs = sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0]))[:most]
    return ", ".join(f"{number:,} {name}" for name, number in pairs if number)


def prepare_data(
    recipe: Recipe, site: Mapping[str, Any], *, force: bool = False
) -> dict[str, Any]:
    """Prepare the data of ``recipe``, or find prepared data; return the run's data record.

    The data card is written if it is missing, or with ``force``. Data that were staged here
    are used as they are, without a search for their raw text, unless ``force``.
    """
    staged = None if force else find_staged(recipe)
    if staged is not None:
        return _keep_staged(recipe, staged)
    for name in recipe.data.source_names:
        source = recipe.data.sources.get(name)
        if source is None or not source.has_text:
            where = f"data.sources.{name}"
            remedy = f"set {where}.files=[...], or scale=mini for the embedded text"
            raise RecipeError(where, "this source has no text files", remedy)
    stem, root = f"{recipe.name}-{recipe.scale.name}", Path(recipe.data.folder)
    hashed = HashCache(path=root / HASHES)
    sources, stages, tokenise = _cleaned(recipe, site, hashed)
    tokenizer = build_node(recipe.tokenizer, "tokenizer")
    folder, manifest = prepare_folder(
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
        sequence_length=max(
            cut.sequence_length for cut in recipe.token_clock.list_sample_cuts()
        ),
        verify=recipe.data.verify,
        say=log_line,
    )
    note_prepared(recipe, folder)
    if recipe.data.write_megatron:
        for prefix in write_megatron(folder, manifest):
            log_line(f"saved Megatron files: {prefix}")
    record = _build_record(recipe, folder, manifest)
    if force or not (folder / CARD).exists():
        card = build_card(
            name=stem,
            manifest=manifest,
            sources=recipe.data.sources,
            texts=sources,
            tokenizer=tokenizer,
            mixture=record["mixture"],
            stages=root.absolute() / STAGES,
        )
        _write_card(card, folder)
    return record


def prepare_run_data(recipe: Recipe, arguments: Arguments) -> dict[str, Any]:
    """Prepare the data of a run; a run with ``card=true`` reads drawn tokens, no text."""
    if not arguments.card:
        return prepare_data(recipe, arguments.site)
    from components.parity.prover import draw_data  # imports torch

    digest = sha256(repr((recipe.tokenizer, recipe.data, recipe.budget)).encode()).hexdigest()
    folder = Path(recipe.data.folder) / f"drawn-{digest[:16]}"
    if not (folder / MANIFEST).exists():
        rmtree(folder, ignore_errors=True)  # of an interrupted command
        draw_data(recipe, folder)
    key = Manifest.from_folder(folder).key
    return {"folder": str(folder.resolve()), "key": key, "unigram": {}, "mixture": {}}


def _keep_staged(recipe: Recipe, staged: Path) -> dict[str, Any]:
    """Check data that were staged here, and return the run's data record."""
    manifest = Manifest.from_folder(staged)
    manifest.check_recipe(
        staged,
        names=recipe.data.source_names,
        vocab_size=int(recipe.tokenizer["vocab_size"]),
        tokens=recipe.data.token_patterns,
    )
    manifest.verify_files(staged, contents=recipe.data.verify == "contents")
    log_line(f"using staged data: {staged}")
    return _build_record(recipe, staged, manifest)


def _build_record(recipe: Recipe, folder: Path, manifest: Manifest) -> dict[str, Any]:
    for cut in recipe.token_clock.list_sample_cuts():
        if cut.packed:
            length = cut.sequence_length
            for line in pack_sources(folder, manifest, recipe.data.source_names, length):
                log_line(line)
    drawn = make_order(recipe, manifest, folder).summarize_draws(recipe.total_samples)
    shares = {name: source.promised_share for name, source in drawn.items()}
    return {
        "folder": str(folder.resolve()),
        "key": manifest.key,
        "unigram": unigram_losses(
            folder, manifest, shares, recipe.decoder_spec.padded_vocab_size
        ),
        "mixture": {name: asdict(source) for name, source in drawn.items()},
    }


def _write_card(card: Mapping[str, Any], folder: Path) -> None:
    """Write the data card next to the token files. The last recipe's card stays."""
    text = json.dumps(card, indent=1, ensure_ascii=False) + "\n"
    with replace_atomically(folder / CARD) as file:
        file.write(text.encode(errors="replace"))
    page = write_card_if_possible(card, (folder / CARD).with_suffix(".html"), log_line)
    log_line(f"saved data card: {page or folder / CARD}")


def _cleaned(
    recipe: Recipe, site: Mapping[str, Any], hashed: HashFile
) -> tuple[Mapping[str, Source | OpenSource], Mapping[str, StageRecord], Tokenise]:
    """Clean the sources if the recipe configures it. The same executor tokenises."""
    raw = {name: recipe.data.sources[name] for name in recipe.data.source_names}
    preparation = recipe.data.preparation
    if not isinstance(preparation, Preparation):
        return raw, {}, LocalTokenise()
    texts = {name: source for name, source in raw.items() if not source.tokens}
    executor = _executor(recipe, preparation, site)
    root = Path(recipe.data.folder).absolute() / STAGES
    runner = StageRunner(root=root, executor=executor, say=log_line)
    corpus = Corpus(sources=texts, preparation=preparation, runner=runner, hashed=hashed)
    cleaned = corpus.run_stages()
    _print_stages(cleaned.stages, raw)
    return {**raw, **cleaned.sources}, cleaned.stages, StagedTokenise(runner=runner)


def _executor(recipe: Recipe, preparation: Preparation, site: Mapping[str, Any]) -> Executor:
    if preparation.executor == "array":
        user = read_user(recipe.cluster.name, site)
        return OnQueue(recipe=recipe, preparation=preparation, user=user, repository=ROOT)
    if preparation.executor == "ray":
        return OnRay(workers=preparation.workers)
    return Local(workers=preparation.workers)
