import os
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from components.data.byte_bpe import ByteBPE
from components.errors import RecipeError

ROOT = Path(__file__).resolve().parents[3]
CONF = ROOT / "conf" / "tokenizer"
FAMILIES = ("bpe", "bpe_bloom", "bpe_gpt2", "bpe_neox_dolma")
TRAIN_AGAIN = """
import sys
from pathlib import Path
from tests.components.data.test_byte_bpe import make, words

make("bpe_neox_dolma").train_on_texts(reversed(words()), Path(sys.argv[1]))
"""


def settings_of(family: str) -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load((CONF / f"{family}.yaml").read_text("utf-8"))
    assert settings.pop("_target_") == f"{ByteBPE.__module__}.{ByteBPE.__name__}"
    return settings


def make(family: str = "bpe_gpt2", **changes) -> ByteBPE:
    return ByteBPE(**{**settings_of(family), "vocab_size": 400, **changes})


def words(seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    known = ["".join(draw.choices("abcdefgäß", k=draw.randint(2, 7))) for _ in range(80)]
    return [" ".join(draw.choices(known, k=12)) + "\n    if 7:\t" for _ in range(300)]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def trained(family, tmp_path_factory) -> ByteBPE:
    tokenizer = make(family)
    tokenizer.train_on_texts(words(), tmp_path_factory.mktemp(family))
    return tokenizer


@pytest.mark.parametrize(
    ("name", "vocab_size", "eod_id"),
    [
        ("bpe_bloom", 250_680, 2),
        ("bpe_gpt2", 50_257, 50_256),
        ("bpe_neox_dolma", 50_280, 50_279),
    ],
)
def test_each_family_has_its_published_size_and_end_of_document(name, vocab_size, eod_id):
    tokenizer = ByteBPE(**settings_of(name))
    assert (tokenizer.vocab_size, tokenizer.eod_id) == (vocab_size, eod_id)


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("bpe_bloom", {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3}),
        ("bpe_gpt2", {"<|endoftext|>": -1}),
        ("bpe_neox_dolma", {"<|padding|>": 1, " " * 24: -26, "  ": -4, "<|endoftext|>": -1}),
    ],
)
def test_special_pieces_have_their_published_ids(name, ids, tmp_path):
    """Negative ids count from the end, because the test vocabulary is smaller."""
    tokenizer = make(name)
    tokenizer.train_on_texts(words(), tmp_path)
    for piece, wanted in ids.items():
        assert tokenizer.encode([piece])[0].tolist() == [wanted % tokenizer.vocab_size]
        assert tokenizer.decode(tokenizer.encode([piece])[0]) == piece
    first_byte = len(settings_of(name)["first_pieces"])  # "!" in GPT-2's alphabet
    assert tokenizer.encode(["!"])[0].tolist() == [first_byte]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_is_decoded_unchanged(trained, text):
    (ids,) = trained.encode([text])
    assert max(ids, default=0) < trained.vocab_size
    if trained.get_settings()["normalization"] == "none":
        assert trained.decode(ids) == text


def test_composed_and_decomposed_letters_are_equal_only_with_normalization(tmp_path):
    for normalization, alike in (("nfc", True), ("none", False)):
        tokenizer = make(normalization=normalization)
        tokenizer.train_on_texts(words(), tmp_path)
        one, two = tokenizer.encode(["\u00e4", "a\u0308"])
        assert np.array_equal(one, two) is alike


def test_no_special_piece_is_added(trained, family):
    (ids,) = trained.encode(["abc"])
    assert trained.eod_id not in ids
    assert [each.tolist() for each in trained.encode(["", "abc"])] == [[], ids.tolist()]
    assert trained.encode([]) == []
    settings = settings_of(family)
    assert ByteBPE(**settings).get_settings() == settings


def test_the_pattern_of_gpt2_cuts_as_the_engines_own(tmp_path):
    text = Path(__file__).read_text("utf-8") + " I'm  sure\t they'd  naïve 12km's\n\n x"
    own = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    split = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(settings_of("bpe_gpt2")["pattern"]), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    assert split.pre_tokenize_str(text) == own.pre_tokenize_str(text)


def test_the_pattern_of_bloom_keeps_digits_together_and_punctuation_apart(tmp_path):
    tokenizer = make("bpe_bloom", vocab_size=263)
    tokenizer.train_on_texts(["12,12,12।12।12"] * 3, tmp_path)
    ids = tokenizer.encode(["12,12।12"])[0]
    assert [tokenizer.decode([token]) for token in ids[:3]] == ["12", ",", "12"]


def test_merges_equal_the_plain_algorithm(tmp_path):
    """Count all pairs of neighbors, merge the most frequent pair, and repeat."""
    texts = words()[:40]
    tokenizer = make(vocab_size=257 + 60)
    tokenizer.train_on_texts(texts, tmp_path)
    learnt = [tokenizer.decode([256 + number]) for number in range(60)]
    assert learnt == _merges(texts, 60)


def _merges(texts: list[str], count: int) -> list[str]:
    cut = pre_tokenizers.Split(Regex(settings_of("bpe_gpt2")["pattern"]), behavior="isolated")
    pieces = Counter(
        tuple(bytes([byte]) for byte in piece.encode())
        for text in texts
        for piece, _ in cut.pre_tokenize_str(text)
    )
    # GPT-2's order of bytes: printing ones, then the others. The lower id wins a tie.
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = [*printing, *(byte for byte in range(256) if byte not in printing)]
    ids = {bytes([byte]): number for number, byte in enumerate(order)}
    for _ in range(count):
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for piece, times in pieces.items():
            for pair in pairwise(piece):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], ids[pair[0]], ids[pair[1]]))
        ids[best[0] + best[1]] = len(ids)
        merged: Counter[tuple[bytes, ...]] = Counter()
        for piece, times in pieces.items():
            merged[_merge(piece, best)] += times
        pieces = merged
    return [piece.decode("utf-8", "replace") for piece in list(ids)[256:]]


def _merge(piece: tuple[bytes, ...], pair: tuple[bytes, bytes]) -> tuple[bytes, ...]:
    out: list[bytes] = []
    for part in piece:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)


def test_texts_in_any_order_give_the_same_bytes(tmp_path):
    make("bpe_neox_dolma").train_on_texts(words(), tmp_path)
    (tmp_path / "again").mkdir()
    environment = {**os.environ, "RAYON_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", TRAIN_AGAIN, str(tmp_path / "again")]
    subprocess.run(command, check=True, env=environment, cwd=ROOT)
    files = (tmp_path / "tokenizer.json", tmp_path / "again" / "tokenizer.json")
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_loaded_tokenizer_encodes_as_the_trained_one(tmp_path):
    trained, loaded = make("bpe_bloom"), make("bpe_bloom")
    trained.train_on_texts(words(), tmp_path)
    loaded.load_file(tmp_path)
    texts = words(seed=1)
    for ids, expected in zip(loaded.encode(texts), trained.encode(texts), strict=True):
        assert ids.tolist() == expected.tolist()


def test_training_and_a_fork_afterwards_are_silent(tmp_path, capfd):
    tokenizer = make()
    tokenizer.train_on_texts(words(), tmp_path)
    tokenizer.encode(words())
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert capfd.readouterr() == ("", "")


def test_an_error_of_the_reader_is_raised_unchanged(tmp_path):
    def read():
        yield "abc"
        raise RecipeError("data.sources.a.files", "is not UTF-8")

    with pytest.raises(RecipeError, match=r"data\.sources\.a\.files: is not UTF-8"):
        make().train_on_texts(read(), tmp_path)


def test_an_error_about_too_many_pieces_names_the_largest_number(family, tmp_path):
    with pytest.raises(RecipeError, match=r"vocab_size: 9,000 pieces.*at most (\d+)") as caught:
        make(family, vocab_size=9000).train_on_texts(words(), tmp_path)
    # The remedy also fits `tokenizer_sample_bytes: all`.
    assert "add files" in caught.value.remedy
    assert "tokenizer_sample_bytes if it is a number" in caught.value.remedy
    largest = int(caught.value.remedy.split("=")[1].split(",")[0])
    make(family, vocab_size=largest).train_on_texts(words(), tmp_path)
    with pytest.raises(RecipeError, match="at most"):
        make(family, vocab_size=largest + 1).train_on_texts(words(), tmp_path)
    with pytest.raises(RecipeError, match=r"pieces, but the text supports at most \d+\n"):
        make(family).train_on_texts([], tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 256}, r"vocab_size: 256 pieces, but bytes and special pieces need 257"),
        ({"first_pieces": ["<a>"], "last_pieces": ["<a>"]}, r"last_pieces: '<a>' is listed tw"),
        ({"first_pieces": [""]}, r"last_pieces: a piece is empty"),
        ({"eod": "</s>"}, r"eod: '</s>' is not a special"),
        ({"pattern": "("}, r"pattern: cannot be read: .*parenthesis"),
    ],
)
def test_invalid_settings_are_refused(changes, message):
    with pytest.raises(RecipeError, match=rf"tokenizer\.{message}"):
        make(**changes)


def test_a_missing_or_different_file_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"tokenizer\.json: does not exist\n  delete"):
        make().load_file(tmp_path)
    for content in ("", "not a tokenizer", "{}"):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(RecipeError, match=r"tokenizer\.json: is not a tokenizer: "):
            make().load_file(tmp_path)
    make().train_on_texts(words(), tmp_path)
    with pytest.raises(RecipeError, match=r"has 400 pieces, tokenizer\.vocab_size is 399"):
        make(vocab_size=399).load_file(tmp_path)
    other = make(first_pieces=["<|endoftext|>"], last_pieces=[])
    with pytest.raises(RecipeError, match=r"does not map <\|endoftext\|> to id 0"):
        other.load_file(tmp_path)
