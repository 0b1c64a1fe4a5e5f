"""The six BLOOM recipes: what follows from their scripts, and their logs and cards."""

import pytest

from components.build import build_node
from tests.recipes.compositions import composed, shown, value

V100, A100 = "jean_zay_v100", "jean_zay"
SMALL = ("bloom560m", "bloom1b1", "bloom1b7", "bloom3b", "bloom7b1")
HOMES = {**dict.fromkeys(SMALL, V100), "bloom176b": A100}
SEQUENCE = 2_048

# Steps in the ramp, samples seen at its end, steps, tokens in billions.
RAMPS = {
    "bloom560m": (47_230, 9_765_696, 659_500, 341.01),
    "bloom1b1": (45_525, 9_765_632, 660_750, 342.56),
    "bloom1b7": (30_743, 9_765_664, 340_500, 344.80),
    "bloom3b": (31_583, 9_765_632, 337_250, 340.52),
    "bloom7b1": (31_583, 9_765_632, 337_500, 340.78),
    "bloom176b": (12_658, 9_765_808, 95_000, 365.37),
}
# Lines of the 176B run's log: step, samples seen, learning rate as printed.
LOG = (
    (12_695, 9_841_584, "5.969e-05"),
    (31_214, 47_768_496, "5.279e-05"),
    (42_780, 71_455_664, "4.475e-05"),
    (85_376, 158_692_272, "1.150e-05"),
    (94_768, 177_927_088, "7.610e-06"),
)
NIGER_CONGO = [
    "ak", "bm", "fon", "ig", "ki", "lg", "ln", "nso", "ny", "rn", "rw",
    "sn", "st", "sw", "tn", "ts", "tum", "tw", "wo", "xh", "yo", "zu",
]  # fmt: skip
# The weights that mixed the run, rounded as in its description.
SHARES = {
    "en": 0.303084, "zhs": 0.176211, "fr": 0.130540, "code": 0.130272, "es": 0.106678,
    "pt": 0.049542, "ar": 0.033068, "vi": 0.024616, "ca": 0.011242, "id": 0.010918,
    "hi": 0.0074701, "bn": 0.0054924, "ta": 0.0021137, "ur": 0.0012454, "ml": 0.0010335,
    "te": 0.00091299, "ne": 0.00066728, "kn": 0.00061905, "pa": 0.00050844, "mr": 0.00050120,
    "gu": 0.00040212, "or": 0.00035928, "as": 0.00011021, "eu": 0.0015595, "zht": 0.00051770,
}  # fmt: skip


# What card, README, chronicles and carbon study report of the 176B run.
REPORTED: dict[str, float] = {
    "unique_tokens": 350e9, "devices": 384, "spare_devices": 32, "step_seconds": 105,
    "tokens_per_second_per_device": 103.8, "tflops_per_device": 149.02, "memory_bytes": 60e9,
    "checkpoint_bytes": 2_300 * 2**30, "checkpoint_seconds": 40, "weights_bytes": 329 * 2**30,
    "months": 3.5, "device_hours": 1_082_990, "energy_kwh": 433_196, "idle_energy_kwh": 256_646,
    "kg_co2e": 24_690, "kg_co2e_idle": 14_600, "kg_co2e_embodied": 11_200,
    "kg_co2e_total": 50_500, "training_loss": 1.939, "held_out_loss": 2.061,
    "perplexity": 7.045, "score_arc_challenge": 41.1, "score_arc_easy": 72.6,
}  # fmt: skip
# Accuracy of the 7.1B model's last checkpoint, to three places.
SCORES = {
    "arc_challenge": 0.302901023890785, "arc_easy": 0.6498316498316499,
    "boolq": 0.6278287461773701, "copa": 0.72, "headqa": 0.29540481400437635,
    "hellaswag": 0.4629555865365465, "lambada": 0.5761692218125364,
    "logiqa": 0.20430107526881722,
}  # fmt: skip
COUNTED = {"parameters", "total_tokens", "steps", "tokens_per_step", "devices"}


@pytest.mark.parametrize("name", HOMES)
def test_the_batch_ramps_up_in_the_published_number_of_steps(name: str) -> None:
    recipe = composed(name, "full")
    first = recipe.batch_ramp.batch_stages[-1].first_step
    billions = round(recipe.budget.total_tokens / 1e9, 2)
    samples = recipe.batch_ramp.consumed_after(first)
    assert (first, samples, recipe.derived_numbers.steps, billions) == RAMPS[name]


@pytest.mark.parametrize(("step", "samples", "rate"), LOG)
def test_samples_and_rate_equal_the_log(step: int, samples: int, rate: str) -> None:
    recipe = composed("bloom176b", "full")
    assert recipe.batch_ramp.consumed_after(step) == samples
    schedule = build_node(recipe.schedule, "schedule")
    assert f"{recipe.optimizer['lr'] * schedule(samples * SEQUENCE):.3e}" == rate


def test_the_mixture_has_46_languages_and_code_in_the_published_shares() -> None:
    shares = value("bloom176b", "recipe.data.shares")
    assert sorted(shares) == sorted([*SHARES, *NIGER_CONGO])
    assert len(shares) == 46 + 1
    assert {name: shares[name] for name in SHARES} == pytest.approx(SHARES, rel=5e-5)
    assert sum(shares[name] for name in NIGER_CONGO) == pytest.approx(0.00031589, abs=2e-8)
    # Within the group the unmerged file's proportions: Swahili against Yoruba.
    assert shares["sw"] / shares["yo"] == pytest.approx(0.016216 / 0.0059217, rel=1e-4)
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", HOMES)
def test_all_sizes_read_the_same_mixture(name: str) -> None:
    assert value(name, "recipe.data") == value("bloom176b", "recipe.data")


def test_flops_give_the_published_rate_at_the_published_step_time() -> None:
    """Megatron's formula repeats the forward pass, a third of all, but for the head."""
    flops = value("bloom176b", "derived.flops_per_token.full")
    head = 6 * 250_880 * 14_336
    tokens = value("bloom176b", "derived.tokens_per_step")
    hardware = (flops - head) * 4 / 3 + head
    assert hardware * tokens / 384 / 105.22 / 1e12 == pytest.approx(149.02, rel=1e-3)
    published = value("bloom176b", "recipe.published")
    assert published["tflops_per_device"]["value"] == 149.02


def test_figures_of_the_large_run_equal_the_report() -> None:
    published = value("bloom176b", "recipe.published")
    assert {name: published[name]["value"] for name in REPORTED} == REPORTED
    assert set(published) == COUNTED | set(REPORTED)


def test_sizes_of_files_that_sources_give_in_gb_are_in_gib() -> None:
    """14 bytes a parameter, and 2 of the weights: within a fifth of a per cent."""
    count = value("bloom176b", "derived.parameters.total")
    published = value("bloom176b", "recipe.published")
    for figure, each in (("checkpoint_bytes", 14), ("weights_bytes", 2)):
        assert published[figure]["value"] == pytest.approx(each * count, rel=3e-3)


@pytest.mark.parametrize("name", SMALL)
def test_a_small_model_has_only_its_own_figures(name: str) -> None:
    published = value(name, "recipe.published")
    scores = {f"score_{task}": round(100 * score, 1) for task, score in SCORES.items()}
    own = scores if name == "bloom7b1" else {}
    found = {figure: published[figure]["value"] for figure in set(published) - COUNTED}
    assert found == own
    assert published["tokens_per_step"]["value"] == value(name, "derived.tokens_per_step")


def test_the_miniature_reads_every_language_that_has_text() -> None:
    sources = shown("bloom560m", "scale=mini")["recipe"]["data"]["sources"]
    texts = {name: source["embedded"] for name, source in sources.items()}
    assert texts.items() >= {name: f"eu24/{name}" for name in ("en", "es", "fr", "pt")}.items()
    assert "python/source" in texts.values()
    assert "zhs" not in texts
