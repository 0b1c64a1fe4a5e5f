"""The shipped studies: published numbers against their sources, plans, what is said of both.

The tables are typed from the sources that each names, not read from the studies.
"""

import re
from functools import cache
from pathlib import Path

import pytest

from command.arguments import ROOT, read_point
from command.compose import compose_recipe
from command.study.listed import PointResult, median_deviation, relative
from command.study.request import StudyRequest, ask
from command.study.runs import plan_point
from command.study.schema import ListedStudy, SearchStudy

FILES = sorted((ROOT / "studies").glob("*.yaml"))
DATA, TENSOR, PIPELINE = (f"parallelism.{name}" for name in ("data", "tensor", "pipeline"))
MICROBATCH, HEADS = "parallelism.microbatch_sequences", "model.attention.num_heads"
OUT = "OOM"
# Of Teuken's script, on 512 GPUs.
TEUKEN_LAYOUT = {TENSOR: 2, PIPELINE: 2, DATA: 128}
# Devices that the sources name for all points of a study together.
DEVICES = {"bloom_shapes": 384, "bloom_topology": 384, "vocabularies": 512}
# Last points that cannot be planned, and what the refusal names: 70 layers have no 72 stages.
REFUSED = {"bloom_nodes": "72"}


@cache
def asked(name: str) -> StudyRequest:
    return ask([f"study={name}", "action=plan"])


def listed(name: str) -> ListedStudy:
    study = asked(name).study
    assert isinstance(study, ListedStudy)
    return study


LISTED = [
    file.stem
    for file in FILES
    if isinstance(study := asked(file.stem).study, ListedStudy) and study.measures == "runs"
]


def published(name: str, *keys: str) -> list[tuple[object, ...]]:
    """What the study says is published, each figure behind the keys of its point."""
    study = listed(name)
    return [
        (*(study.shown(point)[key] for key in keys), quote.value)
        for point in study.points
        for quote in study.quotes(point)
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_study_has_its_files_name_and_says_why(file: Path) -> None:
    study = asked(file.stem).study
    assert study.name == file.stem
    assert len(study.why) > 40
    if isinstance(study, SearchStudy):
        assert study.published.keys() == study.space.keys()


def test_weak_and_strong_scaling_of_gpt_175b() -> None:
    """ArXiv 2605.07726, abstract; factors and batches of slurm/scaling.sh."""
    assert published("smng_p2_weak", "tiles") == [(1_024, 0.93)]
    assert published("smng_p2_strong", "tiles") == [(1_024, 0.82)]
    weak, strong = listed("smng_p2_weak"), listed("smng_p2_strong")
    batches = [weak.values(point)["budget.global_batch_tokens"] for point in weak.points]
    assert batches == [614_400 * factor for factor in range(1, 9)]
    assert strong.set["budget.global_batch_tokens"] == 2_520 * 2_048
    for study in (weak, strong):
        assert [study.shown(p)["tiles"] for p in study.points] == [128 * n for n in range(1, 9)]


def test_weak_scaling_of_mula() -> None:
    """ArXiv 2604.00785, section 2.3: only these three are named in the text."""
    assert published("mula_weak", "tiles") == [(768, 0.97), (1_536, 0.90), (12_288, 0.90)]
    study = listed("mula_weak")
    sequences = [
        int(study.values(point)["budget.global_batch_tokens"]) // 2_048
        for point in study.points
    ]
    assert sequences == [384, 768, 1_536, 3_072, 6_144, 12_288]


def test_topologies_of_bloom() -> None:
    """chronicles-prequel.md, 25 February 2022: the rows of some 2,048 sequences a step."""
    assert published("bloom_topology", DATA, TENSOR, PIPELINE, MICROBATCH) == [
        (8, 8, 6, 4, 114.11),
        (8, 8, 6, 6, 123.57),
        (4, 8, 12, 4, 117.07),
        (4, 8, 12, 2, 128.82),
        (6, 8, 8, 4, 113.16),
        (12, 8, 4, 2, 125.52),
        (12, 8, 4, 4, 114.81),
        (24, 8, 2, 1, 145.45),
        (24, 8, 2, 2, 136.13),
        (48, 8, 1, 1, OUT),
        (8, 4, 12, 4, 111.89),
        (8, 4, 12, 2, 110.48),
        (8, 4, 12, 2, 113.54),
        (16, 4, 6, 4, 117.11),
        (16, 4, 6, 2, 111.71),
        (16, 2, 12, 2, 112.50),
        (32, 2, 6, 2, OUT),
        (32, 2, 6, 1, OUT),
        (8, 2, 24, 1, 119.53),
        (8, 2, 24, 2, 122.75),
        (4, 4, 24, 1, 130.60),
    ]


def test_shapes_and_last_days_of_bloom() -> None:
    """chronicles-prequel.md, 28 February 2022; reshaping-log.md, at iteration 94,767."""
    assert published("bloom_shapes", HEADS, DATA, TENSOR, PIPELINE, MICROBATCH) == [
        (64, 4, 8, 12, 2, 121.63),
        (64, 8, 4, 12, 2, 102.03),
        (112, 8, 4, 12, 2, 104.50),
        (128, 8, 4, 12, 2, 105.89),
        (64, 8, 4, 12, 4, 102.27),
    ]
    assert published("bloom_nodes", "nodes", TENSOR, PIPELINE, MICROBATCH) == [
        (24, 4, 12, 2, 215.8),
        (24, 4, 12, 1, 234.7),
        (24, 4, 24, 1, 220.3),
        (24, 2, 24, 1, 199.8),
        (36, 4, 36, 1, 155.7),
        (36, 2, 36, 1, 141.2),
        (36, 1, 72, 1, 140.4),
    ]


def test_megatron_on_juwels() -> None:
    """Results of github.com/FZJ-JSC/jubench-megatron-lm on JUWELS Booster, tokens a second."""
    assert published("juwels_megatron", "size", "gpus", TENSOR, PIPELINE, "microbatches") == [
        ("13B", 32, 2, 4, 256, 60_777.68),
        ("13B", 32, 2, 4, 256, 59_463.14),
        ("175B", 192, 8, 8, 16, 14_620.74),
        ("175B", 384, 8, 8, 16, 36_055.39),
        ("175B", 768, 8, 8, 16, 52_315.10),
    ]


def test_teuken_quotes_no_rate_and_plans_the_published_layout() -> None:
    study = listed("teuken_scaling")
    assert study.published.values == ()
    assert TEUKEN_LAYOUT in [dict(point) for point in study.points]


def test_tokenizers_are_of_every_language_and_quote_nothing() -> None:
    study = listed("tokenizers")
    assert study.published.values == ()
    first = compose_recipe(asked("tokenizers").arguments_of(study.points[0]))
    languages = compose_recipe(read_point(["recipe=teuken7b", "cluster=juwels"])).data.sources
    assert first.data.sources.keys() == languages.keys()
    assert all(source.has_text for source in first.data.sources.values())
    kinds = {point["tokenizer"] for point in study.points}
    assert kinds == {"unigram_eu24", "bpe_bloom"}


@pytest.mark.parametrize("name", LISTED)
def test_the_recipe_of_a_point_is_on_as_many_devices_as_the_figure_says(name: str) -> None:
    """The first and the last point; products and the recipe's own arithmetic must agree."""
    study, last = listed(name), listed(name).points[-1]
    if name in REFUSED:
        plan = plan_point(asked(name), last)
        assert plan.figure is None
        assert REFUSED[name] in plan.why
    for point in (study.points[0], *(() if name in REFUSED else (last,))):
        plan = plan_point(asked(name), point)
        assert plan.figure is not None, plan.why
        recipe = compose_recipe(asked(name).arguments_of(point))
        assert recipe.derived.steps <= 30  # a rate, not a training
        counts = {
            "tiles": recipe.derived.ranks,
            "gpus": recipe.derived.ranks,
            "nodes": recipe.cluster.nodes,
            "microbatches": recipe.derived.microbatches_per_step,
            "sequences": recipe.derived.samples_per_step,
        }
        said = {key: value for key, value in study.shown(point).items() if key in counts}
        assert said == {key: counts[key] for key in said}
        assert said or name in DEVICES
        assert recipe.derived.ranks == DEVICES.get(name, recipe.derived.ranks)


@pytest.mark.long
@pytest.mark.parametrize("name", LISTED)
def test_what_a_study_says_of_its_plans_is_what_they_say(name: str) -> None:
    study = listed(name)
    plans = [plan_point(asked(name), point) for point in study.points]
    tried = [
        PointResult(
            point=point,
            planned=plan.figure,
            fits=not plan.why,
            measured=None,
            why=plan.why,
            quotes=study.quotes(point),
        )
        for point, plan in zip(study.points, plans, strict=True)
    ]
    middle = median_deviation(relative(study, tried))
    said = re.search(r"(\d+) %(?: \w+){0,2} at the median", study.why)
    if middle is None:
        assert said is None
        for one in relative(study, tried):
            if one.point == TEUKEN_LAYOUT:
                assert f"{one.planned:,.0f}" in study.why
            elif one.point.get("tokenizer.vocab_size") in {100_352, 250_680}:
                assert f"{one.planned:.0%}".replace("%", " %") in study.why
    else:
        assert said is not None
        assert int(said[1]) == round(100 * middle)
