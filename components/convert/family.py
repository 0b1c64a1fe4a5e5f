"""Choose the Hugging Face class that computes the same as a model.

The choice depends on the features of the model section, never on a name.
"""

from components.config.model_spec.decoder import DecoderSpec
from components.convert import (
    experts,
    gpt,
    gpt_oss,
    granite,
    hybrid,
    kimi,
    llama,
    nemotron,
    qwen3_next,
    windowed,
)
from components.convert.hf_family import HFFamily
from components.errors import RecipeError

FAMILIES = (
    *gpt.FAMILIES,
    *llama.FAMILIES,
    *experts.FAMILIES,
    *windowed.FAMILIES,
    *hybrid.FAMILIES,
    *gpt_oss.FAMILIES,
    *nemotron.FAMILIES,
    *kimi.FAMILIES,
    *qwen3_next.FAMILIES,
    *granite.FAMILIES,  # after all classes without multipliers
)


def choose_family(features: DecoderSpec) -> HFFamily:
    """Return the family with all requirements met; an error lists those of the nearest."""
    unmet = {
        family: [row for row in family.all_requirements() if not row.is_met(features)]
        for family in FAMILIES
    }
    fewest = min(map(len, unmet.values()))
    nearest = [family for family, rows in unmet.items() if len(rows) == fewest]
    if not fewest:
        return nearest[0]
    reasons = "nearest:"
    for family in nearest:
        rules = (f"model.{row.path} ({row.describe_rule(features)})" for row in unmet[family])
        reasons += f"\n  {family.architecture} except {', '.join(rules)}"
    problem = f"no Hugging Face class supports this model; {reasons}"
    fix = "change these keys to export the model (training works as it is)"
    raise RecipeError(f"model.{unmet[nearest[0]][0].path}", problem, fix)
