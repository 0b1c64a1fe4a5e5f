"""Tokenizer folders by number, sound and damaged, of every kind that `tokenizers` saves."""

import json
from collections.abc import Callable, Mapping, MutableMapping
from functools import cache
from random import Random
from typing import Any

from tokenizers import (
    AddedToken,
    ByteLevelBPETokenizer,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

Tree = dict[str, Any]
Files = MutableMapping[str, bytes]
EOD = "<|endoftext|>"
PIECES = 512


@cache
def _byte_level(text: str, specials: tuple[str, ...], prefix: bool) -> str:
    engine = ByteLevelBPETokenizer(add_prefix_space=prefix)
    engine.train_from_iterator(
        text.splitlines(), vocab_size=PIECES, special_tokens=[*specials], show_progress=False
    )
    return str(engine.to_str())


@cache
def _other(kind: str, text: str) -> str:
    """Train a tokenizer that is not byte-level, as JSON."""
    models_by_kind: Mapping[str, tuple[Any, Any]] = {
        "bpe": (models.BPE(unk_token="<unk>"), trainers.BpeTrainer),
        "bpe_bytes": (models.BPE(byte_fallback=True), trainers.BpeTrainer),
        "wordpiece": (models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer),
        "wordlevel": (models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer),
        "unigram": (models.Unigram(), trainers.UnigramTrainer),
    }
    model, trainer = models_by_kind[kind]
    engine = Tokenizer(model)
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.decoder = decoders.Metaspace()
    options = {"unk_token": "<unk>"} if kind == "unigram" else {}
    engine.train_from_iterator(
        text.splitlines(),
        trainer(
            vocab_size=PIECES, special_tokens=["<unk>", EOD], show_progress=False, **options
        ),
    )
    return str(engine.to_str())


def _set_normalizer(tree: Tree, random: Random) -> None:
    steps: list[Any] = [
        normalizers.NFC(),
        normalizers.NFKC(),
        normalizers.Lowercase(),
        normalizers.Strip(),
        normalizers.StripAccents(),
        normalizers.Replace("a", ""),
        normalizers.Replace(" ", "▁"),
        normalizers.Prepend("▁"),
        normalizers.BertNormalizer(),
    ]
    chosen = random.sample(steps, random.choice((1, 2)))
    engine = Tokenizer(models.BPE())
    engine.normalizer = chosen[0] if len(chosen) == 1 else normalizers.Sequence(chosen)
    tree["normalizer"] = json.loads(engine.to_str())["normalizer"]


def _set_growing_normalizer(tree: Tree, random: Random) -> None:
    grow = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 40}
    count = random.choice((2, 8, 40))
    tree["normalizer"] = {"type": "Sequence", "normalizers": [grow] * count}


def _set_pre_tokenizer(tree: Tree, random: Random) -> None:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    level["use_regex"] = random.random() < 0.5
    first: Tree = random.choice((
        {"type": "Digits", "individual_digits": True},
        {"type": "WhitespaceSplit"},
        {"type": "Split", "pattern": {"Regex": r"\s+"}, "behavior": "Removed", "invert": False},
        {"type": "Split", "pattern": {"Regex": r"\p{L}+"}, "behavior": "Isolated"}
        | {"invert": random.random() < 0.5},
        {"type": "Punctuation", "behavior": "Isolated"},
        {"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": False},
    ))
    tree["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [first, level]}


def _set_post_processor(tree: Tree, random: Random) -> None:
    engine = Tokenizer.from_str(json.dumps(tree))
    end = engine.token_to_id(EOD)
    start = end if end is not None else 0
    engine.post_processor = random.choice((
        processors.TemplateProcessing(single=f"{EOD} $A", special_tokens=[(EOD, start)]),
        processors.TemplateProcessing(single=f"$A {EOD}", special_tokens=[(EOD, start)]),
        processors.ByteLevel(trim_offsets=True),
        processors.RobertaProcessing((EOD, start), (EOD, start)),
        processors.BertProcessing((EOD, start), (EOD, start)),
    ))
    tree["post_processor"] = json.loads(engine.to_str())["post_processor"]


def _add_tokens(tree: Tree, random: Random) -> None:
    engine = Tokenizer.from_str(json.dumps(tree))
    for number in range(random.choice((1, 3, 40))):
        token = AddedToken(
            random.choice((f"<extra_{number}>", f" word{number}", "the", "\n\n", "é")),
            special=random.random() < 0.5,
            lstrip=random.random() < 0.3,
            rstrip=random.random() < 0.3,
            single_word=random.random() < 0.3,
            normalized=random.random() < 0.3,
        )
        engine.add_tokens([token])
    tree.update(json.loads(engine.to_str()))


def _set_option(tree: Tree, random: Random) -> None:
    key, value = random.choice((
        ("truncation", {"direction": "Right", "max_length": 8, "stride": 0}),
        ("padding", {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": EOD}),
        ("decoder", None),
        ("version", "9.9"),
        ("pre_tokenizer", None),
    ))
    if isinstance(value, dict):
        value |= {"strategy": "LongestFirst" if key == "truncation" else "BatchLongest"}
    tree[key] = value


def _set_model_option(tree: Tree, random: Random) -> None:
    key, value = random.choice((
        ("dropout", 0.5),
        ("unk_token", "<none>"),
        ("fuse_unk", True),
        ("ignore_merges", True),
        ("continuing_subword_prefix", "##"),
        ("end_of_word_suffix", "</w>"),
        ("byte_fallback", True),
    ))
    tree["model"][key] = value


def _damage_vocabulary(tree: Tree, random: Random) -> None:
    vocab = tree["model"]["vocab"]
    if not isinstance(vocab, dict) or not vocab:
        tree["model"]["vocab"] = []
        return
    piece = random.choice([*vocab])
    match random.randrange(7):
        case 0:
            vocab[piece] += random.choice((1_000, 10**9))
        case 1:
            del vocab[piece]
        case 2:
            vocab[piece] = vocab[random.choice([*vocab])]
        case 3:
            vocab[piece] = random.choice((-1, 2**32, 1.5, "7", None))
        case 4:
            vocab[f"{piece}\ud7ff new"] = len(vocab) + random.choice((0, 3))
        case 5:
            tree["model"]["vocab"] = {}
        case _:
            for letter in ("a", "Ġ", "!")[: random.randrange(1, 4)]:
                vocab.pop(letter, None)


def _damage_merges(tree: Tree, random: Random) -> None:
    merges = tree["model"].get("merges") or []
    match random.randrange(4):
        case 0:
            tree["model"]["merges"] = merges[::2]
        case 1:
            tree["model"]["merges"] = [*merges, ["qqq", "zzz"]]
        case 2:
            random.shuffle(merges)
        case _:
            tree["model"]["merges"] = random.choice((None, [1, 2], "a b", [["a"]], []))


def _damage_tree(tree: Tree, random: Random) -> None:
    key = random.choice([*tree])
    values: tuple[Any, ...] = (None, [], {}, "x", -1, 1e999, {"type": "Nothing"}, [[[]]])
    tree[key] = random.choice(values)


CHANGES: tuple[Callable[[Tree, Random], None], ...] = (
    _set_normalizer,
    _set_growing_normalizer,
    _set_pre_tokenizer,
    _set_post_processor,
    _add_tokens,
    _set_option,
    _set_model_option,
    _damage_vocabulary,
    _damage_merges,
    _damage_tree,
)


def write_tokenizer(text: str, random: Random) -> dict[str, bytes]:
    """Return the files of a tokenizer folder; two in three are byte-level BPE."""
    if random.random() < 0.67:
        specials = random.choice(((EOD,), ("<s>", EOD), ("</s>",), (), ("<pad>", "<s>", EOD)))
        source = _byte_level(text, specials, random.random() < 0.2)
    else:
        kinds = ("bpe", "bpe_bytes", "wordpiece", "wordlevel", "unigram")
        source = _other(random.choice(kinds), text)
    tree = json.loads(source)
    for _ in range(random.choice((0, 1, 1, 1, 2))):
        try:
            random.choice(CHANGES)(tree, random)
        except Exception as error:  # noqa: BLE001 (an earlier change broke the tree: it stays so)
            tree.setdefault("broken", str(error))
            break
    content = json.dumps(tree, ensure_ascii=random.random() < 0.5).encode("utf-8", "replace")
    return _write_folder(content, random)


def _write_folder(content: bytes, random: Random) -> dict[str, bytes]:
    match random.randrange(20):
        case 0:
            content = content[: random.randrange(len(content))]
        case 1:
            position = random.randrange(len(content))
            changed = bytes([content[position] ^ (1 << random.randrange(8))])
            content = content[:position] + changed + content[position + 1 :]
        case 2:
            content = random.choice((b"", b"null", b"[]", b"\xff\xfe", b"[" * 20_000))
    files = {"tokenizer.json": content}
    if random.random() < 0.7:
        settings: Tree = {"eos_token": random.choice((EOD, EOD, "</s>", "<none>", 7, None))}
        settings |= random.choice((
            {},
            {"model_max_length": 8},
            {"add_bos_token": True, "bos_token": EOD},
            {"add_eos_token": True},
            {"clean_up_tokenization_spaces": True},
            {"tokenizer_class": "os.system", "auto_map": {"AutoTokenizer": ["x.y", "x.z"]}},
        ))
        files["tokenizer_config.json"] = json.dumps(settings).encode()
    return files
