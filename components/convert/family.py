"""Choose the Hugging Face class that computes what a model computes.

The choice reads the features of the model section, never a name.
"""

from components.config.model_spec.decoder import DecoderSpec
from components.convert import experts, gpt, llama, windowed
from components.convert.hf_family import HFFamily
from components.errors import RecipeError

FAMILIES = (*gpt.FAMILIES, *llama.FAMILIES, *experts.FAMILIES, *windowed.FAMILIES)


def choose_family(features: DecoderSpec) -> HFFamily:
    """Return the family whose requirements are all met.

    Raises:
        RecipeError: there is none; with what each of the nearest requires in addition.
    """
    unmet = {
        family: [row for row in family.all_requirements() if not row.is_met(features)]
        for family in FAMILIES
    }
    fewest = min(map(len, unmet.values()))
    nearest = [family for family, rows in unmet.items() if len(rows) == fewest]
    if not fewest:
        return nearest[0]
    reasons = "the nearest:"
    for family in nearest:
        rules = (f"model.{row.path} ({row.describe(features)})" for row in unmet[family])
        reasons += f"\n  {family.architecture} but for {', '.join(rules)}"
    problem = f"no class of Hugging Face has this; {reasons}"
    fix = "the model can be trained here, but not exported"
    raise RecipeError(f"model.{unmet[nearest[0]][0].path}", problem, fix)
