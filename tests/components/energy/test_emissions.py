"""Emissions: BLOOM's published tonnes follow from its kWh and Jean Zay's profile."""

import pytest

from components.config.schema.cluster import Electricity
from components.energy.emissions import Emissions
from tests.recipes.compositions import at_home

# Luccioni, Viguier and Ligozat 2022, arXiv 2211.02001: the devices' hours at 400 W, what idle
# nodes took, and tonnes of each, of making the hardware, and of all.
DEVICE_HOURS, KWH, IDLE_KWH = 1_082_990, 433_196, 256_646
DYNAMIC, IDLE, EMBODIED, TOTAL = 24.69, 14.6, 11.2, 50.5


def emitted(kwh: float | None, site: Electricity) -> Emissions:
    return Emissions.from_energy(kwh, **site.model_dump())


def test_bloom_s_tonnes_follow_from_its_kwh_and_the_profile() -> None:
    recipe = at_home("bloom176b")
    site = recipe.cluster.electricity
    watts = recipe.model_dump()["cluster"]["hardware"]["power_watts"]
    assert DEVICE_HOURS * watts / 1_000 == pytest.approx(KWH)
    dynamic, idle = (emitted(kwh, site).model_dump()["kg_co2e"] for kwh in (KWH, IDLE_KWH))
    # Without the PUE of 1.2: with it they would be 29.6 t.
    assert dynamic / 1_000 == pytest.approx(DYNAMIC, abs=0.005)
    assert emitted(KWH, site).site_kg_co2e == pytest.approx(29_631, abs=1)
    assert idle / 1_000 == pytest.approx(IDLE, abs=0.05)
    assert (dynamic + idle) / 1_000 + EMBODIED == pytest.approx(TOTAL, abs=0.05)


def test_the_recipe_states_the_parts_and_their_sum() -> None:
    published = at_home("bloom176b").published
    parts = ("kg_co2e", "kg_co2e_idle", "kg_co2e_embodied", "kg_co2e_total")
    values = tuple(published[part].value for part in parts)
    assert values == tuple(round(1_000 * each) for each in (DYNAMIC, IDLE, EMBODIED, TOTAL))
    assert published["energy_kwh"].value == KWH


@pytest.mark.parametrize(
    ("effectiveness", "grams", "known"),
    [
        (1.2, 57.0, {"site_kwh": 120.0, "kg_co2e": 5.7, "site_kg_co2e": 6.84}),
        (1.2, None, {"site_kwh": 120.0}),
        (None, 57.0, {"kg_co2e": 5.7}),
        (None, None, {}),
        (1.0, 0.0, {"site_kwh": 100.0, "kg_co2e": 0.0, "site_kg_co2e": 0.0}),
    ],
)
def test_what_follows_from_an_unknown_figure_is_unknown(effectiveness, grams, known) -> None:
    site = Electricity(power_usage_effectiveness=effectiveness, grams_co2e_per_kwh=grams)
    figures = {"site_kwh", "kg_co2e", "site_kg_co2e"}
    found = emitted(100.0, site).model_dump(include=figures)
    assert found == pytest.approx(dict.fromkeys(figures) | known)
    unknown = emitted(None, site).model_dump(include=figures)
    assert set(unknown.values()) == {None}
