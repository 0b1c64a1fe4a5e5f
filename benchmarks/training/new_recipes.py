"""Does a recipe of ``action=new`` train without a jump of its loss, whatever the text?

Twelve texts of different kinds, drawn from what every clone has without a network, at three
sizes from three seeds are trained by the command through the warm-up and 50 steps of the
recipe's own schedule. The largest size is tried on texts that give it a token for each of its
parameters. A run's rise is how far its held-out loss, after every step, came above its own
running minimum. Exit status 1 if one rises by more than 0.5 nats. The loss of training is kept,
too, but shows the text of a batch as much as the model: four windows of some of 24 languages
differ from the next four by 0.9 nats, and licences that the model has seen from others by 1.2.

Each run is kept as soon as it has ended, and is not repeated by the next call. The words choose
texts, sizes (``1M``) and seeds (``seed=1``); without any, all are run.

    python -m benchmarks.training.new_recipes [TEXT ...] [SIZE ...] [seed=N ...]
"""

import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import distributions
from itertools import accumulate, product
from pathlib import Path

from benchmarks.entry import enter
from benchmarks.kept import RESULTS, ROOT, Row, circumstances, fingerprints
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.key_groups import KeyGroup
from components.config.recipe import Recipe
from components.data.files import hash_file, replace_atomically
from components.errors import RecipeError
from components.terminal import say
from data_prep.sources import CORPORA, library_docs, library_source

RESULT = RESULTS / "new_recipes.json"
SIZES = ("1M", "0.5M", "4M")  # the most telling first
LARGEST = "4M"
SEEDS = (1, 2, 3)
STEPS_AFTER_WARMUP = 50
MOST_RISE = 0.5  # nats
WINDOWS = 16  # of held-out text
TEXT_BYTES, LARGE_TEXT_BYTES = 1_460_000, 8_000_000
CYRILLIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстувшжыз")
FIRST_CJK, NUM_CJK = 0x4E00, 3_000
Documents = Iterator[str]
Key = tuple[str, str, int]  # text, size and seed of a run


def _shuffled_docs() -> list[str]:
    docs = [document.text for document in library_docs()]
    random.Random(0).shuffle(docs)
    return docs


def _topic() -> Documents:
    yield "\n".join(one.text for one in library_docs() if str(one.group).startswith("topic/"))


def _source() -> Documents:
    return (document.text for document in library_source())


def _characters() -> Documents:
    """A table: a row for each character that has a name."""
    for number in range(0x20, 0x30000):
        character = chr(number)
        if name := unicodedata.name(character, ""):
            yield f"{number:04X};{name};{unicodedata.category(character)};{character}"


def _numbers() -> Documents:
    """Tables of numbers, as measurements are kept."""
    drawn = random.Random(1)
    while True:
        rows = (f"{i},{drawn.gauss(20, 5):.2f},{drawn.random():.4f}" for i in range(40))
        yield "\n".join(("step,celsius,share", *rows))


def _log() -> Documents:
    """Many short documents: the lines of a log, nearly alike."""
    drawn, parts = random.Random(2), ("cache", "disk", "fan", "network", "queue", "user")
    for second in range(10**6):
        part, level = drawn.choice(parts), drawn.choice(("INFO", "INFO", "INFO", "WARNING"))
        yield f"12:{second // 60 % 60:02}:{second % 60:02} {level} {part}: {drawn.random():.3f}"


def _licences() -> Documents:
    """Licences of the installed packages: long documents, many of them copies."""
    for package in sorted(distributions(), key=lambda one: str(one.metadata["Name"])):
        for file in package.files or ():
            if "LICENSE" in file.name.upper() and file.suffix in {"", ".txt", ".md"}:
                yield Path(file.locate()).read_text("utf-8", errors="replace")


def _languages() -> Documents:
    """24 languages in three scripts, 57 kB together."""
    for file in sorted((CORPORA / "eu24").glob("*.txt")):
        yield from file.read_text("utf-8").split("\n\n")


def _cyrillic() -> Documents:
    """English words in Cyrillic letters: two bytes a letter."""
    return (text.lower().translate(CYRILLIC) for text in _shuffled_docs())


def _cjk() -> Documents:
    """A sign of three bytes for each English word: many signs, no spaces."""
    for text in _shuffled_docs():
        yield "".join(map(_sign, text.split()))


@cache
def _sign(word: str) -> str:
    return chr(FIRST_CJK + int(hashlib.sha256(word.encode()).hexdigest(), 16) % NUM_CJK)


def _mixed() -> Documents:
    """Prose, code, a table and another script by turns."""
    for several in zip(_shuffled_docs(), _source(), _numbers(), _cyrillic(), strict=False):
        yield from several


def _lines() -> Documents:
    """Many short documents of prose: the first line of every docstring."""
    for text in _shuffled_docs():
        yield from (paragraph.splitlines()[0] for paragraph in text.split("\n\n") if paragraph)


TEXTS: Mapping[str, Callable[[], Documents]] = {
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
    "licences": _licences,
    "cyrillic": _cyrillic,
}


def write_text(name: str, file: Path, most_bytes: int) -> int:
    """Write the documents of a text, a line of JSON each, and return their bytes."""
    num_bytes = 0
    with file.open("w", encoding="utf-8") as stream:
        for text in TEXTS[name]():
            if num_bytes >= most_bytes:
                break
            kept = text.encode()[: most_bytes - num_bytes].decode(errors="ignore")
            if kept.strip():
                stream.write(json.dumps({"text": kept}) + "\n")
                num_bytes += len(kept.encode())
    return num_bytes


def rise_of(losses: Sequence[float]) -> float:
    """Return how far a loss came above the least one before it."""
    minima = accumulate(losses, min)
    return round(max(loss - least for loss, least in zip(losses, minima, strict=True)), 3)


def call(home: Path, *words: str) -> None:
    """Run the command in a folder of its own."""
    program = [sys.executable, str(ROOT / "run.py"), *words]
    done = subprocess.run(program, cwd=home, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr[-2_000:]}")


class TooShortError(Exception):
    """A text does not support the largest size."""


def text_file(home: Path, name: str, size: str) -> Path:
    """Return where a text lies; that of the largest size is longer."""
    return home / f"{name}{'_large' if size == LARGEST else ''}.jsonl"


def write_recipe(home: Path, name: str, size: str) -> Recipe:
    """Write a text and, by ``action=new``, a recipe for it; return the recipe."""
    text, stem = text_file(home, name, size), f"{name}_{size.lower().replace('.', '_')}"
    if not text.exists():
        write_text(name, text, LARGE_TEXT_BYTES if size == LARGEST else TEXT_BYTES)
    file = home / f"{stem}.yaml"
    if not file.exists():
        words = (f"name={stem}", f"file={file}", f"data={text.name}", f"parameters={size}")
        call(home, "action=new", *words)
    return compose_recipe(read_point([f"recipe={file}"]))


def train(home: Path, recipe: Recipe, seed: int) -> dict[str, list[float]]:
    """Train as many steps as are watched; return the losses of both kinds of text."""
    run = home / "run"
    shutil.rmtree(run, ignore_errors=True)
    batch, warmup = recipe.budget.global_batch_tokens, recipe.schedule["warmup_tokens"]
    tokens = min(warmup + STEPS_AFTER_WARMUP * batch, recipe.budget.total_tokens)
    words = [f"budget.seed={seed}", f"budget.total_tokens={tokens}", f"run={run}"]
    words += [
        f"evaluation.every_tokens={batch}",
        f"evaluation.max_windows_per_source={WINDOWS}",
    ]
    call(home, f"recipe={recipe.name}.yaml", *words)
    lines = [
        json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    return {
        kind: [round(line["loss"], 3) for line in lines if line["kind"] == kind]
        for kind in ("step", "held_out")
    }


def measure(home: Path, name: str, size: str, seed: int, kept: Mapping[Key, Row]) -> Row | None:
    """Train one recipe from one seed; return None if the run is kept already.

    Raises:
        TooShortError: the text has fewer tokens in its recipe's budget than parameters.
    """
    recipe = write_recipe(home, name, size)
    recipe_hash = fingerprints(recipe.model_dump(mode="json"), [KeyGroup.MATHEMATICS])
    old = kept.get((name, size, seed))
    if old and old["fingerprint"] == recipe_hash:
        return None
    parameters = recipe.derived.parameters.total
    if size == LARGEST and recipe.budget.total_tokens < parameters:
        raise TooShortError
    losses = train(home, recipe, seed)
    return {
        "text": name,
        "size": size,
        "seed": seed,
        "sha256": hash_file(text_file(home, name, size)),
        "fingerprint": recipe_hash,
        "parameters": parameters,
        "vocabulary": recipe.shape.vocab_size,
        "lr": recipe.optimizer["lr"],
        "steps": len(losses["step"]),
        "warmup_steps": recipe.schedule["warmup_tokens"] // recipe.budget.global_batch_tokens,
        "batch_tokens": recipe.budget.global_batch_tokens,
        "rise": rise_of(losses["held_out"]),
        "rise_in_training": rise_of(losses["step"]),
        "losses": losses,
    }


def keep(rows: Mapping[Key, Row], too_short: set[str]) -> None:
    """Keep the runs that have ended, with how they were measured."""
    said = circumstances(
        peer="none: a run is held against its own running minimum",
        convention=f"nats a token through the warm-up and {STEPS_AFTER_WARMUP} steps; "
        f"held_out: the loss of {WINDOWS} held-out windows before the first and after every "
        "step; rise: the most that it was above the least before it",
        shape={"texts": list(TEXTS), "sizes": list(SIZES), "seeds": list(SEEDS)},
        packages=("torch", "lightning", "tokenizers"),
    )
    tree = said | {
        "highest_rise": max(row["rise"] for row in rows.values()),
        "too_short_for_the_largest": sorted(too_short),
        "missing": [
            " ".join(map(str, key))
            for key in choose_runs([])
            if key not in rows and not (key[1] == LARGEST and key[0] in too_short)
        ],
        "rows": [rows[key] for key in sorted(rows)],
    }
    with replace_atomically(RESULT) as file:
        file.write((json.dumps(tree, indent=1) + "\n").encode())


def choose_runs(words: Sequence[str]) -> list[Key]:
    """Return the runs that the words choose, the most telling first.

    Raises:
        RecipeError: a word is neither text nor size nor seed.
    """
    known = [*TEXTS, *SIZES, *(f"seed={seed}" for seed in SEEDS)]
    if unknown := [word for word in words if word not in known]:
        raise RecipeError(unknown[0], "is no text, size or seed", f"known: {', '.join(known)}")
    texts = [text for text in TEXTS if text in words] or [*TEXTS]
    sizes = [size for size in SIZES if size in words] or [*SIZES]
    seeds = [seed for seed in SEEDS if f"seed={seed}" in words] or [*SEEDS]
    pairs = sorted(product(sizes, seeds), key=lambda pair: (pair[1] > 1, sizes.index(pair[0])))
    return [(text, size, seed) for size, seed in pairs for text in texts]


def main(words: Sequence[str]) -> int:
    """Run what is not kept yet, keep each run at once, and say if the claim holds."""
    chosen = choose_runs(words)
    old = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {"rows": []}
    rows: dict[Key, Row] = {(row["text"], row["size"], row["seed"]): row for row in old["rows"]}
    too_short = set(old.get("too_short_for_the_largest", []))
    with tempfile.TemporaryDirectory() as folder:
        for key in chosen:
            try:
                row = measure(Path(folder), *key, rows)
            except TooShortError:
                if key[0] not in too_short:
                    too_short.add(key[0])
                    keep(rows, too_short)
                continue
            if row is not None:
                rows[key] = row
                say(f"{key}: {row['rise']:.3f} above the minimum, lr {row['lr']}")
                keep(rows, too_short)
    return int(any(rows[key]["rise"] > MOST_RISE for key in chosen if key in rows))


if __name__ == "__main__":
    enter(main)
