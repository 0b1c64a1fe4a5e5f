"""The loss of a text: predicted tokens, separated documents, and bytes of tokens."""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from torch import Tensor, nn

from command.arguments import ROOT, read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.data.unigram import Unigram
from components.evaluate.text_loss import Judge, LossTally, read_text_bytes
from tests.components.convert.conftest import corpus, unigram_section, without_target
from tests.components.data.engines import EOD, train_engine

END = 3
WORDS = ("recipe=teuken7b", "scale=mini", "model.dim=32", "model.num_layers=2")
TINY = (*WORDS, "model.attention.head_dim=8", "model.mlp.ffn_dim=64")


@pytest.fixture(scope="module")
def decoder() -> nn.Module:
    torch.manual_seed(1)
    recipe = compose_recipe(read_point(TINY))
    decoder: nn.Module = build_node(recipe.model, "model")
    for weight in decoder.parameters():
        nn.init.normal_(weight, std=0.5)
    return decoder


def judge(decoder: nn.Module, *, parts: bool) -> Judge:
    options: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32}
    options |= {"eod_id": END, "most_rows": 2, "text_bytes": None}
    return Judge(decoder=decoder, parts_documents=parts, **options)


def windows(ids: Tensor, length: int) -> Iterator[Tensor]:
    for start in range(0, len(ids) - 1, length):
        yield ids[start : start + length + 1]


def sums(decoder: nn.Module, ids: Tensor) -> float:
    with torch.no_grad():
        rows = decoder(ids[None, :-1])[0].log_softmax(-1)
    return -float(rows.gather(1, ids[1:, None]).sum())


def test_every_token_but_the_first_is_predicted_once_from_its_window(decoder) -> None:
    ids = torch.randint(4, 200, (47,))
    found = judge(decoder, parts=False).tally_windows(windows(ids, 10))
    parts = [sums(decoder, ids[start : start + 11]) for start in range(0, 46, 10)]
    assert found.tokens == 46
    assert found.nats == pytest.approx(sum(parts), rel=1e-5)


def test_documents_are_evaluated_separately_if_the_recipe_separates_them(decoder) -> None:
    first, second = torch.randint(4, 200, (9,)), torch.randint(4, 200, (12,))
    end = torch.tensor([END])
    packed = torch.cat([first, end, second])
    found = judge(decoder, parts=True).tally_windows([packed])
    # The end of the first document is part of it and predicts the start of the second.
    apart = sums(decoder, torch.cat([first, end, second[:1]])) + sums(decoder, second)
    assert found.nats == pytest.approx(apart, rel=1e-4)
    together = judge(decoder, parts=False).tally_windows([packed])
    assert together.nats != pytest.approx(apart, rel=1e-3)


def test_documents_with_a_predicted_token_are_counted(decoder) -> None:
    own = judge(decoder, parts=False)
    ids = torch.tensor([7, 8, END, 9, 9, END, 5, 6])
    assert own.tally_windows(windows(ids, 3)).documents == 3  # the last one is cut off
    assert own.tally_windows(windows(ids[:6], 3)).documents == 2
    assert own.tally_windows([]) == LossTally(text_bytes=0)


def test_sums_make_the_figures() -> None:
    one = LossTally(nats=2.0, tokens=4, text_bytes=8, documents=1)
    both = one + LossTally(nats=6.0, tokens=4, text_bytes=8, documents=2)
    bits, counts = pytest.approx(0.5 / math.log(2)), {"tokens": 8, "bytes": 16, "documents": 3}
    figures = {"loss": 1.0, "perplexity": pytest.approx(math.e), "bits_per_byte": bits}
    assert both.compute_figures() == figures | counts
    unknown = (one + LossTally(text_bytes=None)).compute_figures()
    assert (unknown["bits_per_byte"], unknown["bytes"]) == (None, None)
    for nats in (math.nan, math.inf, 1e6):  # of a model that diverged
        figures = LossTally(nats=nats, tokens=4, text_bytes=8).compute_figures()
        assert figures["perplexity"] == pytest.approx(nats * math.inf, nan_ok=True)
        assert figures["loss"] == pytest.approx(nats / 4, nan_ok=True)
    nothing = LossTally().compute_figures()
    assert (nothing["loss"], nothing["perplexity"], nothing["bits_per_byte"]) == (None,) * 3


TEXTS = [
    *("over the bridge", "x", "I'll see, 12345", "\n\nbegins with a line", "a  b   c\t\r\n d "),
    *("\u0939\u093f\u0928\u094d\u0926\u0940", "\U0001f600\U0001f44d\U0001f3fd", "\u6f22\u5b57"),
    *("the<extra>end", "<extra>", f"one{EOD}", "\x00\x7f\u2028"),
]
CUT = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+"), "isolated")


def byte_level(*, prefix: bool = False, split: Any = None, normalizer: Any = None) -> Tokenizer:
    engine = train_engine("over the bridge the end", 290, prefix=prefix, split=split)
    engine.normalizer = normalizer
    engine.add_tokens([AddedToken("<extra>", normalized=False)])
    return engine


ENGINES = {
    "plain": byte_level(),
    "space before a text": byte_level(prefix=True),
    "cut by a pattern": byte_level(split=CUT),
    "mark before a text": byte_level(normalizer=normalizers.Prepend("\u2581")),
}


def count(folder: Path, documents: Sequence[Sequence[int]], eod_id: int) -> int:
    """Count the bytes of all documents in windows, after an end of a document."""
    text_bytes = read_text_bytes(folder, eod_id=eod_id)
    assert text_bytes is not None
    packed = np.array([eod_id, *(i for ids in documents for i in (*ids, eod_id))], np.int64)
    rows = (packed[start : start + 8][None] for start in range(0, len(packed), 7))
    return sum(map(text_bytes.count_bytes, rows))


def raw_bytes(texts: list[str]) -> int:
    """Count bytes without the end-of-document piece, which is never text."""
    return sum(len(text.replace(EOD, "").encode()) for text in texts)


@pytest.mark.parametrize("name", ENGINES)
def test_bytes_of_a_byte_level_tokenizer(name: str, tmp_path: Path) -> None:
    engine = ENGINES[name]
    engine.save(str(tmp_path / "tokenizer.json"))
    # A prefix would be added again after a special piece in a text.
    texts = [text for text in TEXTS if name in {"plain", "cut by a pattern"} or "<" not in text]
    for some in (texts, *([text] for text in texts)):
        ids = [engine.encode(text, add_special_tokens=False).ids for text in some]
        assert count(tmp_path, ids, 0) == raw_bytes(some)


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_bytes_of_a_sentencepiece_tokenizer(kind: str, prefix: bool, tmp_path: Path) -> None:
    kinds = {"model_type": kind, "add_dummy_prefix": prefix}
    section = unigram_section(1_200) | kinds | {"normalization_rule_name": "identity"}
    tokenizer = Unigram(**without_target(section))
    tokenizer.train_on_texts(corpus(), tmp_path)
    texts = [text for text in TEXTS if "<" not in text] + [" with a space", *corpus()[:3]]
    ids = [ids.tolist() for ids in tokenizer.encode(texts)]
    assert count(tmp_path, ids, tokenizer.eod_id) == raw_bytes(texts)


EU_TEXTS = [
    part
    for name in ("de", "el", "ga")
    for part in (ROOT / f"corpora/eu24/{name}.txt").read_text("utf-8").split("\n\n")
]
ODD = "x  = [\t'ﬁ', '½', '漢字', '🜚'];\r\n\n    end<eod>"


def trained(recipe: str, folder: Path, **settings: Any) -> Any:
    section = dict(compose_recipe(read_point([f"recipe={recipe}", "scale=mini"])).tokenizer)
    tokenizer = build_node(section | settings, "tokenizer")
    tokenizer.train_on_texts(EU_TEXTS, folder)
    return tokenizer


@pytest.mark.parametrize(
    ("recipe", "vocab_size", "form", "lost"),
    # The unigram tokenizer reads <eod> in a text as an end, and adds no prefix after it.
    [("teuken7b", 700, "NFKC", len("<eod>") + 1), ("gpt3b6", 400, None, 0)],
    ids=["unigram", "byte BPE"],
)
def test_bytes_equal_the_normalized_text(recipe, vocab_size, form, lost, tmp_path) -> None:
    tokenizer = trained(recipe, tmp_path, vocab_size=vocab_size)
    documents = [*EU_TEXTS, ODD]
    ids = [ids.tolist() for ids in tokenizer.encode(documents)]
    texts = [unicodedata.normalize(form, text) if form else text for text in documents]
    spelled = sum(len(text.encode()) for text in texts)
    assert count(tmp_path, ids, tokenizer.eod_id) == spelled - lost


def test_bytes_are_unknown_if_a_piece_stands_for_any_text(tmp_path: Path) -> None:
    assert read_text_bytes(tmp_path, eod_id=0) is None
    trained("teuken7b", tmp_path, vocab_size=500, byte_fallback=False)
    assert read_text_bytes(tmp_path, eod_id=4) is None
