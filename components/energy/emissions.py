"""Emissions: from the devices' kWh to the site's kWh and to CO2 equivalent.

Neither includes idle nodes, host processors or the production of the hardware.
"""

from pydantic import BaseModel

GRAMS_PER_KILOGRAM = 1_000.0


class Emissions(BaseModel, frozen=True):
    """Energy in kWh and CO2 equivalent in kg, of devices and with overhead; None if unknown."""

    power_usage_effectiveness: float | None
    grams_co2e_per_kwh: float | None
    site_kwh: float | None
    kg_co2e: float | None  # of the devices' energy only, like BLOOM's 24.7 t
    site_kg_co2e: float | None

    @classmethod
    def from_energy(
        cls,
        kwh: float | None,
        *,
        power_usage_effectiveness: float | None,
        grams_co2e_per_kwh: float | None,
    ) -> "Emissions":
        """Return the emissions of the devices' ``kwh``, as far as site and grid are known.

        Energy times power usage effectiveness times grid intensity: Luccioni, Viguier and
        Ligozat 2022, arXiv 2211.02001, section 4.
        """
        site = _product(kwh, power_usage_effectiveness)
        intensity = _product(grams_co2e_per_kwh, 1 / GRAMS_PER_KILOGRAM)
        return cls(
            power_usage_effectiveness=power_usage_effectiveness,
            grams_co2e_per_kwh=grams_co2e_per_kwh,
            site_kwh=site,
            kg_co2e=_product(kwh, intensity),
            site_kg_co2e=_product(site, intensity),
        )


def _product(first: float | None, other: float | None) -> float | None:
    return None if first is None or other is None else first * other
