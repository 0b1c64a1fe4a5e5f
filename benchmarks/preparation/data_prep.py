"""How fast are tokenising and near-duplicate removal, compared with datatrove?

All tools read the same two JSONL files of real text (see `real_text`) with two workers. Each
measurement is a new process; the tools alternate, and the medians are compared. The bare engine
encodes and discards the ids, which is the limit for any tool with that engine. Copies of known
similarity are added to the text, so that recall is counted instead of estimated. Memory is the
peak of any one process, on text repeated to several sizes.

    python -m benchmarks.preparation.data_prep FOLDER [MEGABYTES [ROUNDS [PART ...]]]

A PART is a family of tokenizers, near_duplicates or memory. Other parts keep their figures.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.entry import run_script
from benchmarks.machine import medians_of
from benchmarks.preparation import data_prep_ours as ours
from benchmarks.preparation.near_copies import make_copies, write_texts
from benchmarks.preparation.real_text import real_text
from benchmarks.ratios import Ratio, save_result
from benchmarks.results_store import benchmark_context
from components.child_process import python_environment
from components.convert.tokenizer import convert_sentencepiece

# Family: vocabulary size, and the fraction of the text that it encodes (less if it is slow).
FAMILIES = {
    "unigram_eu24": (100_000, 1.0),
    "bpe_gpt2": (32_000, 0.5),
    "bpe_neox_dolma": (50_280, 0.5),
    "bpe_bloom": (64_000, 0.5),
}
TOKENIZING, REMOVING = ("ours", "bare", "datatrove"), ("ours", "datatrove")
WITHOUT_ENGINE = ("unigram_eu24",)  # `tokenizers` can encode the others
PEERS = {
    "datatrove": "datatrove",
    "tokenizers": "tokenizers alone",
    "bare": "the bare engine, a limit",
}
CLOCKS = ("processor_seconds", "seconds")
THRESHOLD, VERIFIED_BANDS, VERIFIED_ROWS = 0.8, 21, 6
MEMORY_MULTIPLES = {"signatures": (1, 5, 20), "tokens": (0.25, 1, 4)}
MEMORY_FAMILY = "unigram_eu24"
TRAINING_DOCUMENTS = 5_000
Figures = dict[str, Any]
PARTS = (*FAMILIES, "near_duplicates", "memory")


def main(words: Sequence[str]) -> int:
    """Measure each part, and save and print the result."""
    folder, parts = Path(words[0]), words[3:]
    megabytes, rounds = [*map(int, words[1:3]), *(200, 3)[len(words) - 1 :]]
    texts = _interleave_documents(real_text(folder), megabytes * 1_000_000)
    shape = {"text_megabytes": megabytes, "workers": ours.WORKERS, "rounds": rounds}
    context = benchmark_context("data_prep", shape)
    status = 0
    with tempfile.TemporaryDirectory(dir=folder) as work:
        for part in [part for part in PARTS if part in (parts or PARTS)]:
            if part in FAMILIES:
                figures = _measure_encode(texts, part, Path(work), rounds)
            elif part == "memory":
                figures = _measure_memory(texts, Path(work), megabytes)
            else:
                figures = _measure_remove(texts, Path(work), rounds)
            tree = context | {part: figures | context}
            status |= save_result("data_prep", tree, ratios_of(part, figures))
    return status


def ratios_of(part: str, figures: Mapping[str, Any]) -> list[Ratio]:
    """Return the ratios of a part."""
    if part in FAMILIES:
        return _rate_ratios(f"{part}, {figures['pieces']:,} pieces", figures)
    if part == "near_duplicates":
        recall = figures["recall_above_threshold"]
        value = recall["ours"] / recall["datatrove"]
        case = "near duplicates, recall of known copies"
        copies = Ratio(case, "datatrove", value, at_least=1.0)
        return [*_rate_ratios("near duplicates", figures), copies]
    return [
        Ratio(
            f"memory of {kind}, {size.partition('_')[0]} MB of text",
            "less text",
            peak["peak_bytes"] / 1e6,
            unit="MB",
        )
        for kind in MEMORY_MULTIPLES
        for size, peak in figures[kind].items()
    ]


def _rate_ratios(case: str, figures: Mapping[str, Any]) -> list[Ratio]:
    """Divide our rate by the rate of each peer; the bare engine is a limit without a target."""
    return [
        Ratio(
            f"{case}, by {clock.replace('_', ' ')}",
            PEERS[tool],
            value,
            at_least=None if tool == "bare" else 1.0,
        )
        for clock in CLOCKS
        for tool, value in figures[f"ratio_by_{clock}"].items()
    ]


def _interleave_documents(files: Sequence[Path], size: int) -> list[str]:
    """Read documents from all files in turn, so that every prefix has all languages."""
    readers = [ours.read_texts([file]) for file in files]
    texts: list[str] = []
    while readers and size > 0:
        unfinished: list[Iterator[str]] = []
        for reader in readers:
            if (text := next(reader, None)) is not None:
                unfinished.append(reader)
                texts.append(text)
                size -= len(text.encode())
        readers = unfinished
    return texts


def _split_files(texts: Sequence[str], source: Path) -> tuple[list[Path], float]:
    """Write a file of texts per worker; return the files and the MB of text."""
    source.mkdir()
    ends = np.cumsum([len(text.encode()) for text in texts])
    cuts = np.searchsorted(ends, np.arange(1, ours.WORKERS) * ends[-1] / ours.WORKERS)
    files = [source / f"{worker}.jsonl" for worker in range(ours.WORKERS)]
    for file, start, end in zip(files, [0, *cuts], [*cuts, len(texts)], strict=True):
        write_texts(file, texts[start:end])
    return files, float(ends[-1]) / 1e6


def _alternate_tools(
    tools: Sequence[str], rounds: int, command: Callable[[str], Sequence[object]]
) -> dict[str, list[Figures]]:
    measured: dict[str, list[Figures]] = {tool: [] for tool in tools}
    for index in range(rounds):
        for tool in tools if index % 2 == 0 else reversed(tools):
            measured[tool].append(_measure_in_process(*command(tool)))
    return measured


def _measure_in_process(*words: object) -> Figures:
    """Run one measurement in a new process."""
    program = [sys.executable, "-m", "benchmarks.preparation.data_prep_measure"]
    command, environment = [*program, *map(str, words)], python_environment()
    process = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-2_000:]
    measurement: Figures = json.loads(process.stdout.splitlines()[-1])
    return measurement


def _rates(megabytes: float, measured: dict[str, list[Figures]]) -> Figures:
    figures: Figures = {"megabytes": megabytes}
    for clock in CLOCKS:
        medians = medians_of({
            tool: [run[clock] for run in runs] for tool, runs in measured.items()
        })
        figures[f"megabytes_a_{clock[:-1]}"] = {t: megabytes / s for t, s in medians.items()}
        ours_seconds = medians.pop("ours")
        figures[f"ratio_by_{clock}"] = {t: s / ours_seconds for t, s in medians.items()}
    rounds = {
        tool: [{clock: run[clock] for clock in CLOCKS} for run in runs]
        for tool, runs in measured.items()
    }
    return figures | {"rounds": rounds}


def _measure_encode(texts: Sequence[str], family: str, work: Path, rounds: int) -> Figures:
    pieces, share = FAMILIES[family]
    files, megabytes = _split_files(texts[: int(len(texts) * share)], work / family)
    trained = _train_tokenizer(texts, family, work.parent)
    tools = TOKENIZING if family in WITHOUT_ENGINE else (*TOKENIZING, "tokenizers")
    measured = _alternate_tools(
        tools, rounds, lambda tool: ("encode", tool, family, pieces, trained, *files)
    )
    tokens = {tool: runs[0]["result"] for tool, runs in measured.items()}
    return {**_rates(megabytes, measured), "pieces": pieces, "tokens": tokens}


def _train_tokenizer(texts: Sequence[str], family: str, folder: Path) -> Path:
    """Train a tokenizer, unless it exists; datatrove reads its ``tokenizer.json``."""
    pieces, _ = FAMILIES[family]
    trained = folder / "tokenizers" / f"{family}_{pieces}"
    if not (trained / "tokenizer.json").exists():
        trained.mkdir(parents=True, exist_ok=True)
        tokenizer = ours.build_tokenizer(family, vocab_size=pieces)
        tokenizer.train_on_texts(texts[:: max(len(texts) // TRAINING_DOCUMENTS, 1)], trained)
        if (model := trained / "tokenizer.model").exists():
            convert_sentencepiece(model, tokenizer.get_settings()).save(
                str(trained / "tokenizer.json")
            )
    return trained


def _measure_remove(texts: Sequence[str], work: Path, rounds: int) -> Figures:
    copies, similarities = make_copies(texts, ours.NGRAM)
    files, megabytes = _split_files([*texts, *copies], work / "near")
    measured = _alternate_tools(
        REMOVING, rounds, lambda tool: ("remove", tool, "none", ours.BANDS, ours.ROWS, *files)
    )
    settings = (THRESHOLD, VERIFIED_BANDS, VERIFIED_ROWS)
    measured_once = _measure_in_process("remove", "ours", *settings, *files)
    results = {tool: runs[0] for tool, runs in measured.items()} | {"verified": measured_once}
    removed = {tool: _number_all(run["result"], files) for tool, run in results.items()}
    close = {len(texts) + n for n, value in enumerate(similarities) if value >= THRESHOLD}
    first, second = removed["ours"], removed["datatrove"]
    return {
        **_rates(megabytes, measured),
        "settings": {"ngram": ours.NGRAM, "bands": ours.BANDS, "rows": ours.ROWS},
        "verified": dict(zip(("threshold", "bands", "rows"), settings, strict=True)),
        "documents": len(texts) + len(copies),
        "removed": {tool: len(numbers) for tool, numbers in removed.items()},
        "removed_by_both_of_either": len(first & second) / len(first | second),
        "copies_above_threshold": len(close),
        "agreement_above_threshold": 1 - len((first ^ second) & close) / len(close),
        "recall_above_threshold": {
            tool: len(numbers & close) / len(close) for tool, numbers in removed.items()
        },
    }


def _number_all(removed: Sequence[Sequence[int]], files: Sequence[Path]) -> set[int]:
    """Turn document indices per file into numbers over all files."""
    lengths = [sum(1 for _ in ours.read_texts([file])) for file in files]
    starts = np.cumsum([0, *lengths[:-1]])
    return {
        int(start) + index
        for start, indices in zip(starts, removed, strict=True)
        for index in indices
    }


def _measure_memory(texts: Sequence[str], work: Path, megabytes: int) -> Figures:
    files, _ = _split_files(texts[: len(texts) // 10], work / "memory")
    trained = _train_tokenizer(texts, MEMORY_FAMILY, work.parent)
    return {
        kind: {
            f"{size}_megabytes": _measure_in_process(
                "memory", kind, size, MEMORY_FAMILY, FAMILIES[MEMORY_FAMILY][0], trained, *files
            )["result"]
            for size in (round(megabytes * multiple) for multiple in multiples)
        }
        for kind, multiples in MEMORY_MULTIPLES.items()
    }


if __name__ == "__main__":
    run_script(main, min_words=1)
