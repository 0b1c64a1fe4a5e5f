"""How fast is each step on a document, compared with its bare engine?

The result is processor time on one core, medians of a few alternating rounds. The texts are
docstrings of the standard library and 20 copies of the 24 included stories. The engine of a
step is datatrove's filter or formatter, or fastText, called directly. The c4 filter is also
compared with datatrove's sentences, and hashed character n-grams with n-grams of strings.

    python -m benchmarks.preparation.document_steps
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import yaml
from datatrove.data import Document
from datatrove.pipeline.filters import C4QualityFilter
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.utils.word_tokenizers import WhitespaceTokenizer

from benchmarks.entry import run_script
from benchmarks.machine import medians_of, time_in_turns
from benchmarks.ratios import Ratio, save_benchmark
from benchmarks.results_store import ROOT
from components.config.schema.data import Preparation
from components.config.validation import read_section
from data_prep.filters.published import PublishedFilter, Words
from data_prep.filters.text_ratios import character_repetition
from data_prep.sources import CORPORA, library_docs
from data_prep.steps import build_steps, load_detector

ROUNDS = 3
PRESETS = ROOT / "conf" / "preparation"
WORKS = ("opengptx", "roots", "olmoe", "fineweb")
STORIES_TIMES = 20
Call = Callable[[Document], object]


class DatatroveSentences(Words):
    """Our words with datatrove's sentence splitting."""

    def sent_tokenize(self, text: str) -> list[str]:
        sentences: list[str] = WhitespaceTokenizer.sent_tokenize(self, text)
        return sentences


def read_preset(name: str) -> Preparation:
    """Read the preparation of a work, on top of the presets engine and plain."""
    tree: dict[str, Any] = {}
    for stem in ("engine", "plain", name):
        tree |= yaml.safe_load((PRESETS / f"{stem}.yaml").read_text("utf-8"))
    del tree["defaults"]
    return read_section(Preparation, tree, "data.preparation")


def pair_steps() -> Iterator[tuple[str, Call, Call | None]]:
    """Yield each step once, with its bare engine if it has one."""
    seen: set[str] = set()
    for work in WORKS:
        for step in build_steps(read_preset(work), source="web", where="data.preparation"):
            if step.name not in seen:
                seen.add(step.name)
                yield step.name, step, find_engine(step.name, step)
    ours, theirs = (
        C4QualityFilter(filter_no_terminal_punct=False, language=words)
        for words in (Words(), DatatroveSentences())
    )
    yield "c4's sentences", ours.filter, theirs.filter
    yield "character n-grams", _hash_ngrams, _count_ngrams


def find_engine(name: str, step: object) -> Call | None:
    """Return the engine of a step, if it has one."""
    personal = PIIFormatter(email_replacement="PI:EMAIL", ip_replacement="PI:IP_ADDRESS")
    calls: dict[str, Call] = {
        "language": lambda document: load_detector().detect(document.text),
        "personal_data": lambda document: personal.format(document.text),
    }
    return step.engine.filter if isinstance(step, PublishedFilter) else calls.get(name)


def _hash_ngrams(document: Document) -> object:
    return character_repetition(document.text, 10)


def _count_ngrams(document: Document) -> object:
    text = document.text
    return sorted(Counter(text[i : i + 10] for i in range(len(text) - 9)).values())


def read_texts() -> dict[str, list[str]]:
    """Read both texts; a document is a module or a story."""
    stories = [file.read_text("utf-8") for file in sorted(CORPORA.glob("eu24/*.txt"))]
    return {
        "library": [document.text for document in library_docs()],
        "stories": stories * STORIES_TIMES,
    }


def process_all(call: Call, documents: list[str], index: int) -> None:
    """Call a function for each document, as English text."""
    for text in documents:
        call(Document(text=text, id="0", metadata={"language": "en"}))


def count_megabytes(documents: list[str]) -> float:
    """Return the MB of UTF-8 of all documents."""
    return sum(len(text.encode()) for text in documents) / 1e6


def compare_rates(call: Call, engine: Call | None, documents: list[str]) -> dict[str, float]:
    """Return MB of UTF-8 per second of a step and its engine, and the ratio of the rates."""
    calls = {"step": call} | ({"bare": engine} if engine else {})
    for function in calls.values():
        function(Document(text=documents[0], id="0"))  # loads patterns and models
    passes = {name: partial(process_all, call, documents) for name, call in calls.items()}
    seconds, _ = time_in_turns(passes, warmup=0, rounds=ROUNDS, clock=time.process_time)
    size = count_megabytes(documents)
    rates = {name: size / median for name, median in medians_of(seconds).items()}
    return rates | ({"ratio": rates["step"] / rates["bare"]} if engine else {})


def ratios_of(measured: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[Ratio]:
    """Return the ratios of the steps with an engine."""
    return [
        Ratio(f"{name}, {kind}", "its engine", rates["ratio"])
        for name, by_text in measured.items()
        for kind, rates in by_text.items()
        if "ratio" in rates
    ]


def main() -> int:
    """Measure and save the result."""
    documents = read_texts()
    measured = {
        name: {kind: compare_rates(step, engine, docs) for kind, docs in documents.items()}
        for name, step, engine in pair_steps()
    }
    sizes = {kind: count_megabytes(docs) for kind, docs in documents.items()}
    shape = {"megabytes": sizes, "rounds": ROUNDS}
    return save_benchmark("document_steps", shape, {"measured": measured}, ratios_of(measured))


if __name__ == "__main__":
    run_script(lambda words: main(), max_words=0)
