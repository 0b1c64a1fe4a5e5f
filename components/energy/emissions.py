"""From a device's kWh to a site's, and to what its grid emits.

Idle nodes, processors beside the devices and the making of the hardware are in neither.
"""

from pydantic import BaseModel

GRAMS_PER_KILOGRAM = 1_000.0


class Emissions(BaseModel, frozen=True):
    """Energy in kWh, CO2 equivalent in kg, of the devices and with what their site adds.

    Null is what follows from a figure that nobody gives.
    """

    power_usage_effectiveness: float | None
    grams_co2e_per_kwh: float | None
    site_kwh: float | None
    kg_co2e: float | None  # of the devices' energy alone, as BLOOM's 24.7 t are
    site_kg_co2e: float | None

    @classmethod
    def of(
        cls,
        kwh: float | None,
        *,
        power_usage_effectiveness: float | None,
        grams_co2e_per_kwh: float | None,
    ) -> "Emissions":
        """Multiply the devices' ``kwh`` by what is known of their site and its grid.

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


def _product(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other
