"""``cite=true``: the BibTeX of a recipe's works, and every entry whole."""

import re

import pytest

from command.actions.show import WORKS, read_citations
from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.main import main
from components.errors import RecipeError

ENTRY = re.compile(r"@(?P<kind>[a-z]+)\{(?P<key>[a-z]+\d{4}[a-z]+),\n(?P<body>.*)\n\}\n", re.S)
FIELD = re.compile(r"  ([a-z]+) *= \{(.*)\},")


def read_entry(text: str) -> tuple[str, dict[str, str]]:
    """Read one entry with a field a line; braces must balance, in every field."""
    entry = ENTRY.fullmatch(text)
    assert entry is not None, text
    lines = entry["body"].splitlines()
    fields = [FIELD.fullmatch(line) for line in lines]
    assert all(fields), text
    found = {field[1]: field[2] for field in fields if field}
    assert len(found) == len(lines), "a field is given twice"
    for value in found.values():
        depths = [value[:end].count("{") - value[:end].count("}") for end in range(len(value))]
        assert min(depths, default=0) >= 0
        assert value.count("{") == value.count("}")
    return entry["key"], found


def test_every_work_is_a_complete_entry_with_a_unique_key() -> None:
    files = sorted(WORKS.glob("*.bib"))
    assert len(files) >= 6
    entries = [read_entry(file.read_text("utf-8")) for file in files]
    assert len({key for key, _ in entries}) == len(files)
    for key, fields in entries:
        assert {"title", "author", "year", "url"} <= set(fields), key
        assert fields["year"] in key
        # Several authors, one by last and first name, or a group in braces: no handle.
        assert re.search(r" and |^[^,]+, [^,]+$|^\{[^{}]+\}$", fields["author"]), key
        if "eprint" in fields:
            assert re.fullmatch(r"\d{4}\.\d{5}", fields["eprint"])
            assert fields["url"] == f"https://arxiv.org/abs/{fields['eprint']}"
            # Numbers of papers begin with the year and month of their first version.
            assert fields["eprint"][:2] == fields["year"][2:]


def test_prints_the_entries_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe=teuken7b", "action=show", "cite=true"]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert read_entry(first + "\n")[0] == "ali2024teuken"
    assert read_entry(second)[0] == "penke2025opengptx"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("citations=[]", r"citations: .*'gpt3b6' has no citations.*\n.*citations=\[\w+\]"),
        ("citations=[smng_p3]", r"unknown work: 'smng_p3'\n.*smng_p2"),
    ],
)
def test_a_recipe_without_citations_has_a_remedy(word: str, said: str) -> None:
    recipe = compose_recipe(read_point(["recipe=gpt3b6", word]))
    with pytest.raises(RecipeError, match=said):
        read_citations(recipe)
