"""The loss of a stretch of text: what counts, and who sees whom."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.evaluate.text_loss import Judge, LossTally

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


def judge(decoder: nn.Module, *, parts: bool, most_rows: int = 2) -> Judge:
    return Judge(
        decoder=decoder,
        device=torch.device("cpu"),
        dtype=torch.float32,
        eod_id=END,
        parts_documents=parts,
        most_rows=most_rows,
        text_bytes=None,
    )


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


def test_a_document_is_judged_alone_where_the_recipe_parts_them(decoder) -> None:
    first, second = torch.randint(4, 200, (9,)), torch.randint(4, 200, (12,))
    end = torch.tensor([END])
    packed = torch.cat([first, end, second])
    found = judge(decoder, parts=True).tally_windows([packed])
    # The end of the first belongs to it, so what it says of the second's start is its own.
    apart = sums(decoder, torch.cat([first, end, second[:1]])) + sums(decoder, second)
    assert found.nats == pytest.approx(apart, rel=1e-4)
    together = judge(decoder, parts=False).tally_windows([packed])
    assert together.nats != pytest.approx(apart, rel=1e-3)


def test_documents_are_counted_of_which_a_token_was_predicted(decoder) -> None:
    own = judge(decoder, parts=False)
    ids = torch.tensor([7, 8, END, 9, 9, END, 5, 6])
    assert own.tally_windows(windows(ids, 3)).documents == 3  # the last one is cut off
    assert own.tally_windows(windows(ids[:6], 3)).documents == 2
    assert own.tally_windows([]) == LossTally(text_bytes=0)


def test_sums_make_the_figures() -> None:
    one = LossTally(nats=2.0, tokens=4, text_bytes=8, documents=1)
    both = one + LossTally(nats=6.0, tokens=4, text_bytes=8, documents=2)
    assert both.compute_figures() == {
        "loss": 1.0,
        "perplexity": pytest.approx(math.e),
        "bits_per_byte": pytest.approx(0.5 / math.log(2)),
        "tokens": 8,
        "bytes": 16,
        "documents": 3,
    }
    unknown = (one + LossTally(text_bytes=None)).compute_figures()
    assert (unknown["bits_per_byte"], unknown["bytes"]) == (None, None)
    for nats in (math.nan, math.inf, 1e6):  # of a model that diverged
        figures = LossTally(nats=nats, tokens=4, text_bytes=8).compute_figures()
        assert figures["perplexity"] == pytest.approx(nats * math.inf, nan_ok=True)
        assert figures["loss"] == pytest.approx(nats / 4, nan_ok=True)
    nothing = LossTally().compute_figures()
    assert (nothing["loss"], nothing["perplexity"], nothing["bits_per_byte"]) == (None,) * 3
