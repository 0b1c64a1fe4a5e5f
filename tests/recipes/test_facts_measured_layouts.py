"""Studies of layouts, flash attention and energy: their numbers against the sources.

The tables are typed from the sources that each names, not read from the studies.
"""

import csv

import pytest

from command.arguments import ROOT
from command.composition.compose import compose_recipe
from components.planner.plan import plan_recipe
from tests.recipes.test_facts_studies import (
    DATA,
    MICROBATCH,
    PIPELINE,
    TENSOR,
    asked,
    listed,
    published,
)

FLASH, MATH = ("flash",), ("math",)


def test_layouts_of_7b_models_on_jean_zay() -> None:
    """Each of the 41 rows, and what the file leaves out: replicas, shapes, tokens."""
    with (ROOT / "benchmarks/data/jean_zay_layouts.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    keys = ("model", "gpus", DATA, TENSOR, PIPELINE, MICROBATCH, "budget.sequence_length")
    columns = ("devices", "data", "tensor", "pipeline", "microbatch", "sequence_length")
    expected = [
        (row["model"], *(int(row[one]) for one in columns), float(row["step_seconds"]))
        for row in rows
    ]
    assert sorted(published("jean_zay_layouts", *keys)) == sorted({*expected, *expected})
    assert len(rows) == 41
    for row in rows:
        cut = int(row["tensor"]) * int(row["pipeline"])
        assert int(row["data"]) * cut == int(row["devices"])


@pytest.mark.parametrize(
    ("model", "parameters"),
    # 32,000 rows twice, four products of attention, three of the MLP, norms: by hand.
    [("llama2_7b", 6_738_415_616), ("lucie_7b", 6_436_425_728)],
)
def test_models_of_jean_zay_have_the_count_of_their_shapes(model: str, parameters: int) -> None:
    """Llama 2 has 6,738,415,616 (its card's safetensors); Lucie's shape with 32,000 pieces."""
    study = listed("jean_zay_layouts")
    point = next(point for point in study.points if point["model"] == model)
    recipe = compose_recipe(asked("jean_zay_layouts").arguments_of(point))
    assert recipe.derived_numbers.parameters.total == parameters
    assert recipe.derived_numbers.steps == 10
    assert recipe.derived_numbers.samples_per_step == 512


def test_logged_rates_of_jean_zay_follow_from_the_shape_and_the_vocabulary() -> None:
    """Megatron's formula of a forward and a backward pass: no recomputation, 32,000 pieces."""
    with (ROOT / "benchmarks/data/jean_zay_layouts.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["tflops_logged"]]
    assert len(rows) == 21
    for row in rows:
        pieces = {"32k": 32_000, "65k": 65_024}[row["vocabulary"]]
        ends = 1 + 4_096 / (6 * 4_096) + pieces / (16 * 32 * 4_096)
        flops = 72 * 512 * 4_096 * 32 * 4_096**2 * ends
        rate = flops / float(row["step_seconds"]) / int(row["devices"]) / 1e12
        assert rate == pytest.approx(float(row["tflops_logged"]), rel=3e-4)


def test_flash_attention_in_gpt_3() -> None:
    """ArXiv 2307.08691, table 1: TFLOP/s without flash attention, and with FlashAttention-2."""
    length, backends = "budget.sequence_length", "model.attention.backends"
    rates = {
        ("1.3B", 2_048): (142, 196),
        ("1.3B", 8_192): (72, 220),
        ("2.7B", 2_048): (149, 205),
        ("2.7B", 8_192): (80, 225),
    }
    assert published("flash_gpt3", "size", length, backends) == [
        (*point, FLASH, pytest.approx(fast / slow, rel=3e-4))
        for point, (slow, fast) in rates.items()
    ]
    study = listed("flash_gpt3")
    sizes = {"1.3B": 1.3e9, "2.7B": 2.7e9}
    for point in study.points:
        recipe = compose_recipe(asked("flash_gpt3").arguments_of(point))
        assert recipe.derived_numbers.parameters.total == pytest.approx(
            sizes[str(point["size"])], rel=0.03
        )
        assert recipe.derived_numbers.tokens_per_step == 512 * 2_048 == 128 * 8_192


def test_flash_attention_in_teuken_as_the_study_says() -> None:
    study, why = listed("flash_teuken"), asked("flash_teuken").study.description
    assert study.published.values == ()
    keys, rates = ("budget.sequence_length", "model.attention.backends"), {}
    for point in study.points:
        if point[TENSOR] == point[PIPELINE] == 2:
            plan = plan_recipe(compose_recipe(asked("flash_teuken").arguments_of(point)))
            assert plan.time is not None
            length, backends = (point[key] for key in keys)
            rates[length, backends] = 1 / plan.time.total_seconds
            if (length, backends) == (4_096, MATH):
                assert f"{plan.memory.fullest_rank_bytes / 2**30:.0f} GiB" in why
    said = [f"{rates[n, FLASH] / rates[n, MATH]:.2f}" for n in (2_048, 4_096, 8_192)]
    assert f"{said[0]}, {said[1]} and {said[2]} times" in why


def test_energy_of_caraml() -> None:
    """The bars of LLM_tflops_nvidia_jedi_wai.svg: TFLOP/s and Wh of an A100 in an hour.

    The README's example checks the FLOP of a token: 158,152.80 tokens a second on 4 GPUs.
    """
    ends = 1 + 2_048 / (6 * 2_048) + 50_304 / (16 * 16 * 2_048)
    flops = 96 * 16 * 2_048**2 * ends
    assert 4 * 321.65e12 / flops == pytest.approx(158_152.80, rel=2e-4)
    bars = {16: (166, 421), 32: (171, 382), 64: (176, 367), 128: (180, 368)}
    bars |= {256: (183, 358), 512: (183, 352)}
    expected = [
        (sequences, pytest.approx(watt_hours * flops / rate / 1e12, rel=1e-3))
        for sequences, (rate, watt_hours) in bars.items()
    ]
    assert published("caraml_energy", "sequences") == expected
