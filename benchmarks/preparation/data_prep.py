"""How fast are tokenising and the removal of near duplicates, beside datatrove and the limit?

On real text (see `real_text`) all ways read the same two JSONL files with two
workers, each in a process of its own, in turns; the medians are compared. The bare tokenizer
encodes and throws the ids away: no way can be faster with it. Near duplicates of known
similarity are planted, so that recall is counted, not estimated. Memory is the highest of any
one process, on text repeated to several sizes.

    python -m benchmarks.preparation.data_prep FOLDER [MEGABYTES [ROUNDS [PART ...]]]

Parts are the families of tokenizers, near_duplicates and memory; what is not named keeps its
figures.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.preparation import data_prep_ours as ours
from benchmarks.preparation.planted import plant, write_texts
from benchmarks.preparation.real_text import real_text
from benchmarks.ratios import Ratio, keep_result
from components.child_process import python_environment
from components.convert.tokenizer import convert_sentencepiece

# Family: pieces, and how much of the text it is measured on: the slower, the less.
FAMILIES = {
    "unigram_eu24": (100_000, 1.0),
    "bpe_gpt2": (32_000, 0.5),
    "bpe_neox_dolma": (50_280, 0.5),
    "bpe_bloom": (64_000, 0.5),
}
TOKENIZING, REMOVING = ("ours", "bare", "datatrove"), ("ours", "datatrove")
WITHOUT_ENGINE = ("unigram_eu24",)  # `tokenizers` encodes the others, too
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
PARTS = (*FAMILIES, "near_duplicates", "memory")
CONVENTION = (
    "MB of UTF-8 text a second, read from JSONL by two workers until the output is on disk, "
    "start of the workers included, and the same by seconds of processor, which a busy host "
    "disturbs less; ways in turns, each in new processes; medians of the "
    "rounds; ratio is ours by the other"
)


def main(words: Sequence[str]) -> int:
    """Measure, keep, show."""
    folder, parts = Path(words[0]), words[3:]
    megabytes, rounds = [*map(int, words[1:3]), *(200, 3)[len(words) - 1 :]]
    texts = _take(real_text(folder), megabytes * 1_000_000)
    context = circumstances(
        peer="datatrove's DocumentTokenizer and MinHash, tokenizers alone, the bare engine",
        convention=CONVENTION,
        shape={"text_megabytes": megabytes, "workers": ours.WORKERS, "rounds": rounds},
        packages=("datatrove", "fastokens", "numpy", "rensa", "sentencepiece", "tokenizers"),
    )
    status = 0
    with tempfile.TemporaryDirectory(dir=folder) as work:
        for part in [part for part in PARTS if part in (parts or PARTS)]:
            if part in FAMILIES:
                figures = _tokenizing(texts, part, Path(work), rounds)
            elif part == "memory":
                figures = _memory(texts, Path(work), megabytes)
            else:
                figures = _near_duplicates(texts, Path(work), rounds)
            tree = context | {part: figures | context}
            status |= keep_result("data_prep", tree, ratios_of(part, figures))
    return status


def ratios_of(part: str, figures: Mapping[str, Any]) -> list[Ratio]:
    """Take the ratios of a part."""
    if part in FAMILIES:
        return _rate_ratios(f"{part}, {figures['pieces']:,} pieces", figures)
    if part == "near_duplicates":
        recall = figures["recall_above_threshold"]
        value = recall["ours"] / recall["datatrove"]
        case = "near duplicates, planted copies that are found"
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
    """Divide our rate by the others'; the bare engine is a limit and no target."""
    return [
        Ratio(
            f"{case}, by {clock.replace('_', ' ')}",
            PEERS[way],
            value,
            at_least=None if way == "bare" else 1.0,
        )
        for clock in CLOCKS
        for way, value in figures[f"ratio_by_{clock}"].items()
    ]


def _take(files: Sequence[Path], size: int) -> list[str]:
    """Take documents of all files in turns, so that any beginning has all languages."""
    readers = [ours.texts_of([file]) for file in files]
    texts: list[str] = []
    while readers and size > 0:
        left: list[Iterator[str]] = []
        for reader in readers:
            if (text := next(reader, None)) is not None:
                left.append(reader)
                texts.append(text)
                size -= len(text.encode())
        readers = left
    return texts


def _deal(texts: Sequence[str], source: Path) -> tuple[list[Path], float]:
    """Cut the texts into a file for each worker; return them and the MB of text in them."""
    source.mkdir()
    ends = np.cumsum([len(text.encode()) for text in texts])
    cuts = np.searchsorted(ends, np.arange(1, ours.WORKERS) * ends[-1] / ours.WORKERS)
    files = [source / f"{worker}.jsonl" for worker in range(ours.WORKERS)]
    for file, start, end in zip(files, [0, *cuts], [*cuts, len(texts)], strict=True):
        write_texts(file, texts[start:end])
    return files, float(ends[-1]) / 1e6


def _rounds(
    ways: Sequence[str], rounds: int, command: Callable[[str], Sequence[object]]
) -> dict[str, list[dict[str, Any]]]:
    measured: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for index in range(rounds):
        for way in ways if index % 2 == 0 else reversed(ways):
            measured[way].append(_apart(*command(way)))
    return measured


def _apart(*words: object) -> dict[str, Any]:
    """Take one measurement in a fresh process."""
    program = [
        sys.executable,
        "-m",
        "benchmarks.preparation.data_prep_measure",
        *map(str, words),
    ]
    done = subprocess.run(
        program, env=python_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    measurement: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measurement


def _rates(megabytes: float, measured: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    rates = {
        f"megabytes_a_{clock[:-1]}": {
            way: megabytes / statistics.median(one[clock] for one in rounds)
            for way, rounds in measured.items()
        }
        for clock in CLOCKS
    }
    ratios = {
        f"ratio_by_{clock}": {
            way: rates[f"megabytes_a_{clock[:-1]}"]["ours"] / rate
            for way, rate in rates[f"megabytes_a_{clock[:-1]}"].items()
            if way != "ours"
        }
        for clock in CLOCKS
    }
    rounds = {
        way: [{clock: one[clock] for clock in CLOCKS} for one in rounds_]
        for way, rounds_ in measured.items()
    }
    return {"megabytes": megabytes, **rates, **ratios, "rounds": rounds}


def _tokenizing(texts: Sequence[str], family: str, work: Path, rounds: int) -> dict[str, Any]:
    pieces, share = FAMILIES[family]
    some = texts[: int(len(texts) * share)]
    files, megabytes = _deal(some, work / family)
    trained = _trained(texts, family, work.parent)
    ways = TOKENIZING if family in WITHOUT_ENGINE else (*TOKENIZING, "tokenizers")
    measured = _rounds(
        ways, rounds, lambda way: ("encode", way, family, pieces, trained, *files)
    )
    tokens = {way: rounds_[0]["result"] for way, rounds_ in measured.items()}
    return {**_rates(megabytes, measured), "pieces": pieces, "tokens": tokens}


def _trained(texts: Sequence[str], family: str, folder: Path) -> Path:
    """Train a tokenizer once for all calls; datatrove reads its ``tokenizer.json``."""
    pieces, _ = FAMILIES[family]
    trained = folder / "tokenizers" / f"{family}_{pieces}"
    if not (trained / "tokenizer.json").exists():
        trained.mkdir(parents=True, exist_ok=True)
        tokenizer = ours.tokenizer_of(family, vocab_size=pieces)
        tokenizer.train(texts[:: max(len(texts) // TRAINING_DOCUMENTS, 1)], trained)
        if (model := trained / "tokenizer.model").exists():
            convert_sentencepiece(model, tokenizer.settings()).save(
                str(trained / "tokenizer.json")
            )
    return trained


def _near_duplicates(texts: Sequence[str], work: Path, rounds: int) -> dict[str, Any]:
    copies, alike = plant(texts, ours.NGRAM)
    files, megabytes = _deal([*texts, *copies], work / "near")
    measured = _rounds(
        REMOVING, rounds, lambda way: ("remove", way, "none", ours.BANDS, ours.ROWS, *files)
    )
    removed = {way: _numbered(one[0]["result"], files) for way, one in measured.items()}
    verified = _apart("remove", "ours", THRESHOLD, VERIFIED_BANDS, VERIFIED_ROWS, *files)
    removed["verified"] = _numbered(verified["result"], files)
    close = {len(texts) + place for place, share in enumerate(alike) if share >= THRESHOLD}
    one, other = removed["ours"], removed["datatrove"]
    return {
        **_rates(megabytes, measured),
        "settings": {"ngram": ours.NGRAM, "bands": ours.BANDS, "rows": ours.ROWS},
        "verified": {
            "threshold": THRESHOLD,
            "bands": VERIFIED_BANDS,
            "rows": VERIFIED_ROWS,
        },
        "documents": len(texts) + len(copies),
        "removed": {way: len(found) for way, found in removed.items()},
        "removed_by_both_of_either": len(one & other) / len(one | other),
        "planted_above_threshold": len(close),
        "agreement_above_threshold": 1 - len((one ^ other) & close) / len(close),
        "recall_above_threshold": {
            way: len(found & close) / len(close) for way, found in removed.items()
        },
    }


def _numbered(removed: Sequence[Sequence[int]], files: Sequence[Path]) -> set[int]:
    """Number documents through the files."""
    lengths = [sum(1 for _ in ours.texts_of([file])) for file in files]
    begins = np.cumsum([0, *lengths[:-1]])
    return {
        int(begin) + index
        for begin, indices in zip(begins, removed, strict=True)
        for index in indices
    }


def _memory(texts: Sequence[str], work: Path, megabytes: int) -> dict[str, Any]:
    files, _ = _deal(texts[: len(texts) // 10], work / "memory")
    trained = _trained(texts, MEMORY_FAMILY, work.parent)
    return {
        kind: {
            f"{size}_megabytes": _apart(
                "memory", kind, size, MEMORY_FAMILY, FAMILIES[MEMORY_FAMILY][0], trained, *files
            )["result"]
            for size in (round(megabytes * multiple) for multiple in multiples)
        }
        for kind, multiples in MEMORY_MULTIPLES.items()
    }


if __name__ == "__main__":
    enter(main, least=1)
