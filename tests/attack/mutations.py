"""Seeded mutations of valid files and command lines: types, keys, bytes, numbers, texts.

No word of a command line names a place outside the working folder: users may name any place.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import yaml

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1 << 63, 10**24, 10**80, 0.5, -1e308, 1e308, 1e-320),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "none", "nan", "1e6", "\x00"),
    *("\x1b]0;x\x07", "\x1b[2J", "\u202eabc", "\u2066a\u2069", "\ud83d", "e\u0301"),
    *("\U0001d518", "\x9b1m", "[/nope]", "[bold]x", "[table three]", "{{ x }}", "%s%n"),
    *("${name}", "${oc.env:HOME}", "$${description}", "${description}${description}"),
    *("../outside/ran", "linked/ran", "/proc/nowhere/x", "~/x", ".", "a" * 5_000, "a\nb"),
    *("a: b", "- a", "--help", "!!python/name:os.system", "os.system", "planted.Model"),
    *("2026-01-01", "0x10", "1_000", [], {}, [[]], [None], {"a": None}, [1] * 50),
    *({"_target_": "os.system"}, {"_partial_": True}, {"": 1}, "components.x.Y"),
)
KEYS = (
    *("", "name", "_target_", "_partial_", "hydra", "a.b", "defaults", "<<", "\x1b[2J"),
    "x" * 300,
)
PIECES = (
    *("=", "==", "'", '"', "[", "]", "{", "}", "(", ")", ",", ":", "\\", "$", "${", "${name}"),
    *("choice(1,2)", "range(0,3)", "interval(0,1)", "glob(*)", "shuffle(1,2)", "sort(2,1)"),
    *("int(x)", "str(1)", "tag(a,1)", "extend_list(1)", "\x00", "\x1b[2J", "\u202e", "ö", " "),
    *("\n", "null", "true", "nan", "inf", "1e400", "-", "--", "+", "~", "*", "?", "9" * 40),
    "1e24",
)
WORDS = (
    *("optimizer.lr=1e-4", "model.dim=64", "budget.seed=7", "parallelism=auto", "-m"),
    *("--multirun", "scale=full", "scale=mini", "cluster=local", "cluster=juwels"),
    *("output=json", "within_days=3", "why=x", "nothing=1", "model.nothing=1"),
    *("data.shares={a: 1}", "model={dim: 8}", "a=teuken7b why='x", "", "-h", "x", "cite=true"),
    *("optimizer.lr=1e-4,1e-3", "recipe=teuken7b", "recipe=nothing", "run=run", "runs=[run]"),
    *("=", "a=teuken7b", "b=", "layouts=[{data: 2}]", "at_most=2", "force=true"),
    *("hydra.run.dir=x", "+why=x", "~model", "site.account=x", "model._target_=os.system"),
    *("budget.total_tokens=1e24", "model.num_layers=999999999", "cluster.ranks=-1"),
)


def mutate(file: Path, seed: str) -> None:
    """Change a file in one to three places; the same seed does the same."""
    random = Random(seed)
    if random.random() < 0.25 or file.suffix not in {".json", ".yaml", ".jsonl"}:
        file.write_bytes(_bytes(file.read_bytes(), random))
    elif file.suffix == ".jsonl":
        _lines(file, random)
    else:
        is_yaml = file.suffix == ".yaml"
        text = file.read_text("utf-8")
        tree = yaml.safe_load(text) if is_yaml else json.loads(text)
        for _ in range(random.randint(1, 3)):
            tree = _tree(tree, random)
        head = "".join(line for line in text.splitlines(True)[:4] if line.startswith("#"))
        _write(file, head if is_yaml else "", tree, random)


def _write(file: Path, head: str, tree: object, random: Random) -> None:
    if head or file.suffix == ".yaml":
        text = head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    else:
        text = json.dumps(tree)
    if random.random() < 0.1:  # a key twice
        lines = text.splitlines(keepends=True)
        text += random.choice(lines)
    file.write_bytes(text.encode("utf-8", "surrogatepass"))


def _lines(file: Path, random: Random) -> None:
    lines = file.read_text("utf-8").splitlines()
    place = random.randrange(len(lines)) if lines else 0
    line = json.loads(lines[place]) if lines else {}
    text = json.dumps(_tree(line, random))
    if random.random() < 0.2:
        text = text[: random.randrange(len(text) + 1)]
    lines[place : place + random.randint(0, 1)] = [text]
    file.write_bytes(
        ("\n".join(lines) + random.choice(["\n", ""])).encode("utf-8", "surrogatepass")
    )


def _bytes(content: bytes, random: Random) -> bytes:
    place = random.randrange(len(content) + 1)
    kind = random.randrange(5)
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + random.randbytes(random.randint(1, 8)) + content[place:]
    if kind == 2:
        return content[:place] + content[place + random.randint(1, 40) :]
    if kind == 3:
        return (
            content[:place]
            + random.choice([b"\x00", b"\xff\xfe", b"{" * 3_000])
            + content[place:]
        )
    return content + content


def _tree(tree: Any, random: Random) -> Any:
    """Change one place of a tree, chosen among all of them."""
    places = list(_places(tree))
    if not places:
        return random.choice(HOSTILE)
    holder, key = random.choice(places)
    random.choice(EDITS)(holder, key, random)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])


def _swap(holder: Any, key: Any, random: Random) -> None:
    holder[key] = random.choice(HOSTILE)


def _drop(holder: Any, key: Any, _: Random) -> None:
    del holder[key]


def _add(holder: Any, _: Any, random: Random) -> None:
    if isinstance(holder, dict):
        holder[random.choice(KEYS)] = random.choice(HOSTILE)
    else:
        holder.append(random.choice(HOSTILE))


def _rename(holder: Any, key: Any, random: Random) -> None:
    if isinstance(holder, dict):
        holder[random.choice([*KEYS, f"{key}x"])] = holder.pop(key)


def _nest(holder: Any, key: Any, random: Random) -> None:
    for _ in range(random.choice([1, 5, 60])):
        holder[key] = [holder[key]] if random.random() < 0.5 else {"a": holder[key]}


def _scale(holder: Any, key: Any, random: Random) -> None:
    value = holder[key]
    if isinstance(value, int | float) and not isinstance(value, bool):
        holder[key] = value * random.choice([-1, 0, 1e-9, 10**3, 10**9, 10**18])
    elif isinstance(value, str):
        holder[key] = value + str(random.choice(HOSTILE))


EDITS: tuple[Callable[[Any, Any, Random], None], ...] = (
    *(_swap, _swap, _drop, _add, _rename, _nest, _scale, _scale),
)


def mutate_words(words: Sequence[str], random: Random) -> list[str]:
    """Drop, double, garble or add words; places outside are never named."""
    changed = list(words)
    for _ in range(random.randint(1, 3)):
        place = random.randrange(len(changed) + 1)
        kind = random.randrange(5)
        if kind == 0:
            changed[place : place + 1] = []
        elif kind == 1:
            changed[place:place] = changed[place : place + 1]
        elif kind == 2 and place < len(changed):
            changed[place] = _garbled(changed[place], random)
        else:
            changed.insert(place, random.choice(WORDS))
    return changed


def _garbled(word: str, random: Random) -> str:
    """Put a piece into a word; nothing is taken away that keeps a path relative."""
    place = random.randrange(len(word) + 1)
    return word[:place] + random.choice(PIECES) + word[place:]
