"""The tokenizer of a new recipe splits words with combining marks like BLOOM's.

The texts are article 1 of the Universal Declaration of Human Rights.
"""

import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from components.data.byte_bpe import ByteBPE
from components.errors import RecipeError

ROOT = Path(__file__).resolve().parents[3]
TEXTS = {
    "devanagari": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। "
    "उन्हें बुद्धि और अन्तरात्मा की देन प्राप्त है और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए।",
    "bengali": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে। তাঁদের বিবেক এবং বুদ্ধি "
    "আছে; সুতরাং সকলেরই একে অপরের প্রতি ভ্রাতৃত্বসুলভ মনোভাব নিয়ে আচরণ করা উচিত।",
    "tamil": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்; அவர்கள் மதிப்பிலும், உரிமைகளிலும் "
    "சமமானவர்கள். அவர்கள் நியாயத்தையும் மனச்சாட்சியையும் இயற்பண்பாகப் பெற்றவர்கள்.",
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม "
    "และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ",
    "arabic": "يُولَدُ جَمِيعُ النَّاسِ أَحْرَارًا مُتَسَاوِينَ فِي الْكَرَامَةِ وَالْحُقُوقِ. وَقَدْ وُهِبُوا "
    "عَقْلًا وَضَمِيرًا وَعَلَيْهِمْ أَنْ يُعَامِلَ بَعْضُهُمْ بَعْضًا بِرُوحِ الْإِخَاءِ.",
    "persian": "تمام افراد بشر آزاد زاده می\u200cشوند و از لحاظ حیثیت و کرامت و حقوق "
    "با هم برابرند.",
    "decomposed": unicodedata.normalize(
        "NFD", "Tous les êtres humains naissent libres et égaux en dignité et en droits."
    ),
}


def settings(option: str) -> dict[str, Any]:
    file = ROOT / "conf" / "tokenizer" / f"{option}.yaml"
    tree: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))
    del tree["_target_"]
    return tree


def tokens_per_word(option: str, text: str, folder: Path) -> float:
    """Train as many pieces as the text supports, and count the tokens of the same text."""
    try:
        ByteBPE(**settings(option) | {"vocab_size": 9_000}).train_on_texts([text], folder)
    except RecipeError as error:
        (most,) = re.findall(r"vocab_size=(\d+)", error.remedy)
    tokenizer = ByteBPE(**settings(option) | {"vocab_size": int(most)})
    tokenizer.train_on_texts([text], folder)
    return len(tokenizer.encode([text])[0]) / len(text.split())


@pytest.mark.parametrize("script", TEXTS)
def test_words_need_no_more_tokens_than_with_the_pattern_of_bloom(script, tmp_path):
    ours, blooms, gpt2s = (
        tokens_per_word(option, TEXTS[script], tmp_path)
        for option in ("bpe", "bpe_bloom", "bpe_gpt2")
    )
    assert ours <= blooms + 0.1  # punctuation at the end of a sentence
    assert gpt2s > 1.1 * ours


def test_text_without_marks_and_joiners_is_cut_as_by_gpt2() -> None:
    ours, gpt2s = (
        Split(Regex(str(settings(option)["pattern"])), "isolated")
        for option in ("bpe", "bpe_gpt2")
    )
    texts = [file.read_text("utf-8") for file in sorted(ROOT.glob("corpora/eu24/*.txt"))]
    assert len(texts) == 24
    mixed = "they'd 12 345 x1 -> {}; \u2764\ufe0f \U0001f469\u200d\U0001f4bb\n\n  end"
    for text in (*texts, mixed):
        assert ours.pre_tokenize_str(text) == gpt2s.pre_tokenize_str(text)
