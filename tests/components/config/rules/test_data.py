"""The section ``data``: what of mixture, phases and sources is refused, and what it derives."""

from copy import deepcopy
from typing import Any

import pytest

from components.config.fingerprint import compute_fingerprint
from components.config.resolve import resolve_tree
from components.config.schema.data import DataPhase, Source
from tests.components.config.helpers import assert_refused, refusals, teuken

TWO = ("data.shares={en: 0.5, de: 0.5}", "budget.sequence_length=64")


@pytest.mark.parametrize(
    ("words", "message"),
    refusals(r"""
data.mixture=natural -> data\.shares: 24 shares are set, but data\.mixture
data.shares={} -> data\.shares: 0 shares add up to 0\.000000, not 1
data.mixture={temperature: 0.5} data.shares={}
    data\.mixture\.temperature: input should be greater than or equal to 1
data.mixture={warmth: 2} data.shares={} -> data\.mixture\.\w+:
data.mixture=equal -> data\.mixture: input should be 'given' or 'natural'
data.phases={end: {shares: {en: 1.0}}}
    data\.phases\.end: expected exactly one of from_tokens and from_fraction
data.phases={end: {from_tokens: 5, from_fraction: 0.5, shares: {en: 1.0}}}
    data\.phases\.end: expected exactly one
data.phases={end: {from_fraction: 0.9, shares: {en: 0.5, de: 0.4}}}
    data\.phases\.end\.shares: 2 shares add up to 0\.900000, not 1
budget.total_tokens=10_240 data.phases.end={from_tokens: 10240, shares: {}}
    data\.phases\.end\.from_tokens: 10,240 is more than .* - 1 = 10,239
data.sources.en.files=[a.txt] data.sources.en.tokens=[a]
    data\.sources\.en: files and tokens are mutually exclusive
data.sources.en.tokens=[a] data.sources.en.dataset={path: a, split: b}
    data\.sources\.en: tokens and dataset are mutually exclusive
data.sources.en.tokens=[a]
    data\.tokenizer_folder: none, but en has tokens and bg has text for
data.sources.en.eod=absent
    data\.sources\.en\.eod: absent is valid only for a source with tokens
data.sources={en: {tokens: [a], eod: absent}} data.document_mask=true data.shares={en: 1.0}
    data\.sources\.en\.eod: absent, but data\.document_mask needs the end
data.sources={en: {tokens: [a], eod: absent}} data.loss_after_eod=false data.shares={en: 1.0}
    data\.loss_after_eod: false, but documents of en have no end token
data.goldfish={one_in: 50, window_tokens: 9000}
    data\.goldfish\.window_tokens: 9,000 is more than budget\.sequence_length 256
data.goldfish={one_in: 1, window_tokens: 9}
    data\.goldfish\.one_in: input should be greater than or equal to 2
data.sources.en.most_epochs=0 -> data\.sources\.en\.most_epochs: input should
data.sources.fr.tokenz=[a] -> data\.sources\.fr\.tokenz: unknown key
"""),
)
def test_invalid_mixtures_are_refused(words: str, message: str) -> None:
    assert_refused(words, message)


def test_with_a_rule_every_source_with_text_is_mixed() -> None:
    data = teuken("data.mixture={temperature: 3}", "data.shares={}").data
    assert len(data.source_names) == 24
    assert data.source_names == tuple(data.sources)
    assert data.sources["mt"].embedded == "eu24/mt"


def test_phases_begin_at_the_first_sample_after_their_token() -> None:
    later = "b: {from_fraction: 0.9, shares: {en: 1.0}}"
    phases = f"data.phases={{{later}, a: {{from_tokens: 65, shares: {{de: 1.0}}}}}}"
    recipe = teuken(*TWO, phases, "budget.total_tokens=16_384")
    assert [(first, path) for first, path, _ in recipe.data_phases] == [
        (0, "data.shares"),
        (2, "data.phases.a.shares"),
        (231, "data.phases.b.shares"),  # 16,384 x 0.9 / 64 is 230.4
    ]


def test_a_share_of_a_tenth_is_exact() -> None:
    phase = DataPhase(from_fraction=0.1, shares={"a": 1.0})
    assert phase.first_token(10**12) == 10**11


def test_a_source_of_only_a_later_phase_is_prepared() -> None:
    phase = "data.phases={end: {from_fraction: 0.5, shares: {mt: 1.0}}}"
    recipe = teuken(*TWO, phase)
    assert recipe.data.source_names == ("en", "de", "mt")
    assert set(recipe.data.sources) == {"en", "de", "mt"}


def test_a_miniature_keeps_the_place_of_a_phase_and_gives_it_the_filler(full_tree) -> None:
    full = deepcopy(full_tree)
    total = full["budget"]["total_tokens"]
    phase = {"from_tokens": total * 3 // 4, "shares": {"de": 0.75, "no_text": 0.25}}
    full["data"]["phases"] = {"end": phase}
    full["data"]["sources"]["no_text"] = {"most_epochs": 4}
    full["data"]["sources"]["de"]["most_epochs"] = 4
    small = teuken().model_dump(mode="json")
    tree = deepcopy({**full, "scale": small["scale"], "cluster": small["cluster"]})
    tree["parallelism"] = small["parallelism"]
    mini = resolve_tree(tree, (), full)
    shares = mini.data.phases["end"].shares
    assert mini.data.phases["end"].from_tokens == mini.budget.total_tokens * 3 // 4
    assert shares["de"] == pytest.approx(0.15)
    assert shares["python_source"] == mini.data.shares["python_source"]
    assert sum(shares.values()) == pytest.approx(1)
    assert "no_text" not in mini.data.sources
    assert mini.data.sources["de"].most_epochs is None


def test_a_phase_of_the_user_is_final() -> None:
    data = teuken("data.phases={end: {from_fraction: 0.5, shares: {mt: 1.0}}}").data
    assert dict(data.phases["end"].shares) == {"mt": 1.0}
    assert data.shares["python_source"] == 0.6


def test_unused_keys_of_a_source_are_not_in_the_resolved_recipe() -> None:
    unused: dict[str, Any] = {"files": [], "embedded": None, "placeholder": None}
    assert Source().model_dump(mode="json") == unused
    used = Source(tokens=("a",), eod="absent", column="body", most_epochs=4)
    assert Source.model_validate(used.model_dump(mode="json")) == used


def test_the_mixture_is_mathematics_and_paths_are_not() -> None:
    def fingerprint(*words: str) -> str:
        return compute_fingerprint(teuken("data.shares={en: 0.5, de: 0.5}", *words))

    words = ("data.write_megatron=true", "data.verify=sizes")
    same = {fingerprint(), *map(fingerprint, words)}
    words = ("data.tokenizer_folder=a", "data.on_exhausted=redistribute")
    phases = "data.phases={end: {from_fraction: 0.5, shares: {en: 1.0}}}"
    other = set(map(fingerprint, (*words, phases, "data.sources.en.most_epochs=4")))
    assert len(same) == 1
    assert len(same | other) == 5
