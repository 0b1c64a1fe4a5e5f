"""Does a recipe of ``action=new`` train without loss spikes on any text?

The command trains twelve kinds of text, which need no network, at three sizes with three seeds:
the warm-up and 50 steps of the recipe's schedule. The largest size needs a text with at least
one token per parameter. The rise of a run is the largest difference between its held-out loss
and the running minimum of that loss. Exit status 1 if a rise exceeds 0.5 nats. The training
loss is saved too, but it also depends on the text of the batch: batches of four windows differ
by 0.9 nats with 24 languages, and by 1.2 nats between licenses seen and not seen in training.

Each finished run is saved and not repeated. The arguments select texts, sizes (``1M``) and
seeds (``seed=1``); without arguments all runs are made.

    python -m benchmarks.training.new_recipes [TEXT ...] [SIZE ...] [seed=N ...]
"""

import hashlib
import json
import random
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import distributions
from itertools import accumulate, product
from pathlib import Path

from benchmarks.entry import run_script
from benchmarks.program import run_program
from benchmarks.results_store import (
    RESULTS,
    ResultRow,
    hash_groups,
    read_tree,
    result_context,
    save_tree,
)
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.key_groups import KeyGroup
from components.config.recipe import Recipe
from components.data.files import hash_file
from components.errors import RecipeError
from components.run.history import read_lines
from components.terminal import log_line
from data_prep.sources import CORPORA, library_docs, library_source

RESULT = RESULTS / "new_recipes.json"
SIZES = ("1M", "0.5M", "4M")  # the most informative first
LARGEST = "4M"
SEEDS = (1, 2, 3)
STEPS_AFTER_WARMUP = 50
MOST_RISE = 0.5  # nats
WINDOWS = 16  # held-out
TEXT_BYTES, LARGE_TEXT_BYTES = 1_460_000, 8_000_000
CYRILLIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстувшжыз")
FIRST_CJK, NUM_CJK = 0x4E00, 3_000
DocumentTexts = Iterator[str]
RunKey = tuple[str, str, int]  # text, size and seed of a run


def _shuffled_docs() -> list[str]:
    docs = [document.text for document in library_docs()]
    random.Random(0).shuffle(docs)
    return docs


def _topic() -> DocumentTexts:
    yield "\n".join(
        doc.text for doc in library_docs() if str(doc.group_text).startswith("topic/")
    )


def _source() -> DocumentTexts:
    return (document.text for document in library_source())


def _characters() -> DocumentTexts:
    """A table with a row per named character."""
    for number in range(0x20, 0x30000):
        character = chr(number)
        if name := unicodedata.name(character, ""):
            yield f"{number:04X};{name};{unicodedata.category(character)};{character}"


def _numbers() -> DocumentTexts:
    """Tables of numbers, as of measurements."""
    draw = random.Random(1)
    while True:
        rows = (f"{i},{draw.gauss(20, 5):.2f},{draw.random():.4f}" for i in range(40))
        yield "\n".join(("step,celsius,share", *rows))


def _log() -> DocumentTexts:
    """Many short documents: similar lines of a log."""
    draw, parts = random.Random(2), ("cache", "disk", "fan", "network", "queue", "user")
    for second in range(10**6):
        part, level = draw.choice(parts), draw.choice(("INFO", "INFO", "INFO", "WARNING"))
        yield f"12:{second // 60 % 60:02}:{second % 60:02} {level} {part}: {draw.random():.3f}"


def _licenses() -> DocumentTexts:
    """Licenses of the installed packages: long documents, many of them copies."""
    for package in sorted(distributions(), key=lambda package: str(package.metadata["Name"])):
        for file in package.files or ():
            if "LICENSE" in file.name.upper() and file.suffix in {"", ".txt", ".md"}:
                yield Path(file.locate()).read_text("utf-8", errors="replace")


def _languages() -> DocumentTexts:
    """24 languages in three scripts, 57 kB together."""
    for file in sorted((CORPORA / "eu24").glob("*.txt")):
        yield from file.read_text("utf-8").split("\n\n")


def _cyrillic() -> DocumentTexts:
    """English words in Cyrillic letters: two bytes a letter."""
    return (text.lower().translate(CYRILLIC) for text in _shuffled_docs())


def _cjk() -> DocumentTexts:
    """A CJK character of three bytes per English word, without spaces."""
    for text in _shuffled_docs():
        yield "".join(map(_character_of, text.split()))


@cache
def _character_of(word: str) -> str:
    return chr(FIRST_CJK + int(hashlib.sha256(word.encode()).hexdigest(), 16) % NUM_CJK)


def _mixed() -> DocumentTexts:
    """Prose, code, tables and another script, in alternation."""
    for documents in zip(_shuffled_docs(), _source(), _numbers(), _cyrillic(), strict=False):
        yield from documents


def _lines() -> DocumentTexts:
    """Many short documents of prose: the first line of every docstring."""
    for text in _shuffled_docs():
        yield from (paragraph.splitlines()[0] for paragraph in text.split("\n\n") if paragraph)


TEXTS: Mapping[str, Callable[[], DocumentTexts]] = {
    "prose": lambda: iter(_shuffled_docs()),
    "languages": _languages,
    "code": _source,
    "log": _log,
    "cjk": _cjk,
    "one_document": _topic,
    "numbers": _numbers,
    "mixed": _mixed,
    "lines": _lines,
    "characters": _characters,
    "licences": _licenses,
    "cyrillic": _cyrillic,
}


def write_text(name: str, file: Path, most_bytes: int) -> int:
    """Write a line of JSON per document of a text; return the bytes of the documents."""
    num_bytes = 0
    with file.open("w", encoding="utf-8") as stream:
        for text in TEXTS[name]():
            if num_bytes >= most_bytes:
                break
            part = text.encode()[: most_bytes - num_bytes].decode(errors="ignore")
            if part.strip():
                stream.write(json.dumps({"text": part}) + "\n")
                num_bytes += len(part.encode())
    return num_bytes


def compute_rise(losses: Sequence[float]) -> float:
    """Return the largest difference between a loss and the running minimum."""
    minima = accumulate(losses, min)
    return round(max(loss - minimum for loss, minimum in zip(losses, minima, strict=True)), 3)


def text_file(home: Path, name: str, size: str) -> Path:
    """Return the file of a text; the largest size has a longer text."""
    return home / f"{name}{'_large' if size == LARGEST else ''}.jsonl"


def write_recipe(home: Path, name: str, size: str) -> Recipe:
    """Write a text, and a recipe for it by ``action=new``; return the recipe."""
    text, stem = text_file(home, name, size), f"{name}_{size.lower().replace('.', '_')}"
    if not text.exists():
        write_text(name, text, LARGE_TEXT_BYTES if size == LARGEST else TEXT_BYTES)
    file = home / f"{stem}.yaml"
    if not file.exists():
        words = (f"name={stem}", f"file={file}", f"data={text.name}", f"parameters={size}")
        run_program("action=new", *words, home=home)
    return compose_recipe(read_point([f"recipe={file}"]))


def train_recipe(home: Path, recipe: Recipe, seed: int) -> dict[str, list[float]]:
    """Train the measured steps; return training and held-out losses."""
    run = home / "run"
    shutil.rmtree(run, ignore_errors=True)
    batch, warmup = recipe.budget.global_batch_tokens, recipe.schedule["warmup_tokens"]
    tokens = min(warmup + STEPS_AFTER_WARMUP * batch, recipe.budget.total_tokens)
    words = [f"budget.seed={seed}", f"budget.total_tokens={tokens}", f"run={run}"]
    words.append(f"evaluation.every_tokens={batch}")
    words.append(f"evaluation.max_windows_per_source={WINDOWS}")
    run_program(f"recipe={recipe.name}.yaml", *words, home=home)
    lines = list(read_lines(run / "metrics.jsonl"))
    return {
        kind: [round(line["loss"], 3) for line in lines if line["kind"] == kind]
        for kind in ("step", "held_out")
    }


def hash_recipe(recipe: Recipe) -> dict[str, str]:
    """Return the fingerprint of a recipe, by which its stored runs are current."""
    return hash_groups(recipe.model_dump(mode="json"), [KeyGroup.MATHEMATICS])


def measure_run(home: Path, recipe: Recipe, key: RunKey) -> ResultRow:
    """Train one recipe with one seed."""
    name, size, seed = key
    losses = train_recipe(home, recipe, seed)
    return {
        "text": name,
        "size": size,
        "seed": seed,
        "sha256": hash_file(text_file(home, name, size)),
        "fingerprint": hash_recipe(recipe),
        "parameters": recipe.derived_numbers.parameters.total,
        "vocabulary": recipe.decoder_spec.vocab_size,
        "lr": recipe.optimizer["lr"],
        "steps": len(losses["step"]),
        "warmup_steps": recipe.schedule["warmup_tokens"] // recipe.budget.global_batch_tokens,
        "batch_tokens": recipe.budget.global_batch_tokens,
        "rise": compute_rise(losses["held_out"]),
        "rise_in_training": compute_rise(losses["step"]),
        "losses": losses,
    }


def save_runs(rows: Mapping[RunKey, ResultRow], too_short: set[str]) -> None:
    """Save the finished runs with their context."""
    context = result_context(
        peer="none: the running minimum of the same run",
        convention=f"nats per token during the warm-up and {STEPS_AFTER_WARMUP} steps; "
        f"held_out: loss of {WINDOWS} held-out windows before the first and after every step; "
        "rise: largest difference to the running minimum",
        shape={"texts": list(TEXTS), "sizes": list(SIZES), "seeds": list(SEEDS)},
        packages=("torch", "lightning", "tokenizers"),
    )
    tree = context | {
        "highest_rise": max(row["rise"] for row in rows.values()),
        "too_short_for_the_largest": sorted(too_short),
        "missing": [
            " ".join(map(str, key))
            for key in choose_runs([])
            if key not in rows and not (key[1] == LARGEST and key[0] in too_short)
        ],
        "rows": [rows[key] for key in sorted(rows)],
    }
    save_tree(RESULT, tree)


def choose_runs(words: Sequence[str]) -> list[RunKey]:
    """Return the selected runs, the most informative first.

    Raises:
        RecipeError: an argument is not a text, a size or a seed.
    """
    valid = [*TEXTS, *SIZES, *(f"seed={seed}" for seed in SEEDS)]
    if unknown := [word for word in words if word not in valid]:
        problem, fix = "not a text, a size or a seed", f"choose from {', '.join(valid)}"
        raise RecipeError(unknown[0], problem, fix)
    texts = [text for text in TEXTS if text in words] or [*TEXTS]
    sizes = [size for size in SIZES if size in words] or [*SIZES]
    seeds = [seed for seed in SEEDS if f"seed={seed}" in words] or [*SEEDS]
    pairs = sorted(product(sizes, seeds), key=lambda pair: (pair[1] > 1, sizes.index(pair[0])))
    return [(text, size, seed) for size, seed in pairs for text in texts]


def main(words: Sequence[str]) -> int:
    """Train the selected runs that are not stored, and save each run."""
    selected = choose_runs(words)
    old = read_tree(RESULT)
    rows: dict[RunKey, ResultRow] = {
        (row["text"], row["size"], row["seed"]): row for row in old.get("rows", [])
    }
    too_short = set(old.get("too_short_for_the_largest", []))
    with tempfile.TemporaryDirectory() as folder:
        for key in selected:
            text, size, _ = key
            recipe = write_recipe(Path(folder), text, size)
            if key in rows and rows[key]["fingerprint"] == hash_recipe(recipe):
                continue
            parameters = recipe.derived_numbers.parameters.total
            if size == LARGEST and recipe.budget.total_tokens < parameters:
                too_short.add(text)
            else:
                rows[key] = row = measure_run(Path(folder), recipe, key)
                log_line(f"{key}: {row['rise']:.3f} above the minimum, lr {row['lr']}")
            save_runs(rows, too_short)
    return int(any(rows[key]["rise"] > MOST_RISE for key in selected if key in rows))


if __name__ == "__main__":
    run_script(main)
