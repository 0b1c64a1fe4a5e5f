"""The embedded corpus has the promised form, and each file is in the language of its name.

The references are the orthographies and function words below. They come from the languages
themselves, not from the files.
"""

import re
import unicodedata
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "corpora" / "eu24"
PARAGRAPHS = 12
SMALLEST_CHARACTERS, LARGEST_CHARACTERS = 1_800, 2_400
LATIN = set("abcdefghijklmnopqrstuvwxyz")

# For each language: two words that every text has (no other language here has both), and the
# letters of its orthography. Bulgarian and Greek have their whole alphabet, other languages the
# letters besides a to z. Romanian has the comma below, not the cedilla, a common misspelling.
TABLE = """
bg на през абвгдежзийклмнопрстуфхцчшщъьюяѝ
cs když než áčďéěíňóřšťúůýž
da og ikke æøåé
de und nicht äöüß
el και που αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώϊϋΐΰ
en the and
es los y áéíñóúü
et ja kui äöõüšž
fi ja kun äöå
fr les dans àâæçéèêëîïôœùûüÿ
ga agus níl áéíóú
hr je što čćđšž
hu egy és áéíóöőúüű
it il della àèéìòù
lt ir buvo ąčęėįšųūž
lv un bija āčēģīķļņšūž
mt il li ċġħżà
nl het een éëïö
pl się nie ąćęłńóśźż
pt não uma áâãàçéêíóôõú
ro și este ăâîșț
sk keď než áäčďéíĺľňóôŕšťúýž
sl ki je čšž
sv och inte åäöé
"""
ROWS = [row.split() for row in TABLE.strip().splitlines()]
FUNCTION_WORDS = {language: (first, second) for language, first, second, *_ in ROWS}
LETTERS = {language: "".join(letters) for language, _, _, *letters in ROWS}
LANGUAGES = sorted(LETTERS)
FILES = sorted(FOLDER.rglob("*"))


def text_of(language: str) -> str:
    return (FOLDER / f"{language}.txt").read_bytes().decode("utf-8")


def paragraphs_of(language: str) -> list[str]:
    return text_of(language).removesuffix("\n").split("\n\n")


def words_of(language: str) -> set[str]:
    return set(re.findall(r"[^\W\d]+", text_of(language).lower()))


def has_speech(paragraph: str) -> bool:
    # A right single quotation mark does not count: it is the apostrophe too.
    marks = re.compile("DOUBLE (LOW|QUOT|ANGLE)|LEFT SINGLE QUOT|E[NM] DASH")
    return any(marks.search(unicodedata.name(character)) for character in paragraph)


def test_there_is_one_file_for_each_of_the_24_official_languages() -> None:
    assert len(LANGUAGES) == 24
    assert [file.name for file in FILES] == [f"{language}.txt" for language in LANGUAGES]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_file_has_twelve_paragraphs_and_about_two_thousand_characters(language: str) -> None:
    paragraphs = paragraphs_of(language)
    assert len(paragraphs) == PARAGRAPHS
    assert all(paragraph == paragraph.strip() != "" for paragraph in paragraphs)
    assert not any("\n" in paragraph for paragraph in paragraphs)
    assert text_of(language).endswith("\n")
    assert SMALLEST_CHARACTERS <= len(text_of(language)) <= LARGEST_CHARACTERS


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_file_is_composed_unicode_without_controls_and_markup(language: str) -> None:
    text = text_of(language)
    assert unicodedata.is_normalized("NFC", text)
    categories = {unicodedata.category(character) for character in text.replace("\n", "")}
    assert not {category for category in categories if category.startswith("C")}
    assert "\N{REPLACEMENT CHARACTER}" not in text
    assert not re.search(r"[^\S\n]{2}", text)
    assert not set(text) & set("<>*_#`[]{}|\\\"'\t")


def test_no_paragraph_occurs_twice() -> None:
    paragraphs = [text for language in LANGUAGES for text in paragraphs_of(language)]
    assert len(set(paragraphs)) == len(LANGUAGES) * PARAGRAPHS


@pytest.mark.parametrize("language", LANGUAGES)
def test_letters_belong_to_the_language_and_most_occur(language: str) -> None:
    own = set(LETTERS[language])
    found = {character for character in text_of(language).lower() if character.isalpha()}
    alphabet = own if language in {"bg", "el"} else own | LATIN
    assert found <= alphabet
    assert 2 * len(found & own) >= len(own)


@pytest.mark.parametrize(("language", "script"), [("bg", "CYRILLIC"), ("el", "GREEK")])
def test_bulgarian_and_greek_have_their_own_script(language: str, script: str) -> None:
    letters = [character for character in text_of(language) if character.isalpha()]
    assert len(letters) > SMALLEST_CHARACTERS / 2
    assert all(unicodedata.name(letter).startswith(script) for letter in letters)


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_other_file_has_both_function_words_of_a_language(language: str) -> None:
    first, second = FUNCTION_WORDS[language]
    having_both = [other for other in LANGUAGES if {first, second} <= words_of(other)]
    assert having_both == [language]


@pytest.mark.parametrize("language", [other for other in LANGUAGES if other != "en"])
def test_paragraphs_translate_each_other(language: str) -> None:
    # The fifth paragraph of the story has the year. A translation is rarely half or twice as
    # long as its original, so the ratio shows a moved or cut paragraph.
    paragraphs = paragraphs_of(language)
    assert [n for n, text in enumerate(paragraphs) if "1874" in text] == [4]
    for original, translation in zip(paragraphs_of("en"), paragraphs, strict=True):
        assert 0.6 < len(translation) / len(original) < 1.6


@pytest.mark.parametrize("language", LANGUAGES)
def test_only_the_paragraphs_with_speech_have_its_marks(language: str) -> None:
    speaking = [n for n, text in enumerate(paragraphs_of(language)) if has_speech(text)]
    assert speaking == [2, 6, 10]
