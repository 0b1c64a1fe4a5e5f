"""Validate one section of a recipe; every wrong field is one line of an error."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from components.config.schema import types
from components.config.suggestions import nearest, suggest, written_number
from components.errors import RecipeError

S = TypeVar("S", bound=BaseModel)
# A step of pydantic's that is no key: which member of a union was tried.
TAGS = rf"{re.escape(types.SECTION.tag)}|{re.escape(types.WORD.tag)}"
MEMBER = re.compile(
    rf"{TAGS}|(constrained-)?(int|float|str|bool)|(literal|tuple|list|dict)\[.*|\[key\]"
)
QUOTED = re.compile(r"'([^']*)'")
# Ways out by pydantic's name of what is wrong.
FORMS = {
    "greater_than": "write a number above {gt:g}",
    "greater_than_equal": "write {ge:g} or more",
    "less_than": "write a number below {lt:g}",
    "less_than_equal": "write {le:g} or less",
    "finite_number": "write a finite number",
    "int_type": "write a whole number, as 8 or 1_000_000",
    "float_type": "write a number, as 0.5 or 3e-4",
    "bool_type": "write {where}=true or {where}=false",
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type"), "write keys and values below it"
    ),
    "word_or_section": "write none, or keys and values below it",
    "string_pattern_mismatch": "write a text of the form {pattern}",
    "tuple_type": "write a list, as {where}=[...]",
    "string_type": "write a text; one that looks like a number in quotes",
}


def read_section(kind: type[S], tree: Mapping[str, Any], path: str) -> S:
    """Validate one section; a RecipeError has every wrong field below ``path``, one a line."""
    try:
        return kind.model_validate(dict(tree))
    except ValidationError as failure:
        # A misspelt key first: what is missing beside it is that.
        errors = sorted(failure.errors(), key=lambda error: error["type"] != "extra_forbidden")
        for error in errors:
            raised = error.get("ctx", {}).get("error")
            if isinstance(raised, RecipeError):  # a validator knows more than pydantic
                raise raised from None
        found = [_told(error, kind, path) for error in errors]
    where, problem, _ = found[0]
    others = [f"{place}: {what}" for place, what, _ in found[1:]]
    ways = dict.fromkeys(way for _, _, way in found)
    raise RecipeError(where, "\n".join([problem, *others]), "; ".join(ways).replace("?;", "?"))


def _told(error: Any, kind: type[BaseModel], path: str) -> tuple[str, str, str]:
    """Say where something is wrong, what, and the way out."""
    steps = [step for step in error["loc"] if not MEMBER.fullmatch(str(step))]
    where = ".".join(map(str, [path, *steps] if path else steps))
    if error["type"] == "extra_forbidden":
        there = types.sections_at(kind, steps[:-1])
        known = [key for section in there for key in types.fields_of(section)]
        return where, "unknown key", suggest(where, known)
    if error["type"] == "missing":
        return where, "missing", f"set {where}=..."
    given, form = error["input"], error["type"]
    if types.WORD.tag in error["loc"]:
        form = "word_or_section"
    problem = f"{error['msg'][0].lower()}{error['msg'][1:]}, got {given!r}"
    return where, problem, _way(form, error.get("ctx", {}), given, where)


def _way(kind: str, rule: Mapping[str, Any], given: object, where: str) -> str:
    """Offer a value that would have been taken, or say of what form one is."""
    if kind == "literal_error":
        listed = rule["expected"]  # 'a', 'b' or 'c'; or 1, 2 or 3
        choices = QUOTED.findall(listed) or listed.replace(" or ", ", ").split(", ")
        return nearest(str(given), choices)
    whole = kind.startswith("int")
    if whole or kind.startswith("float"):
        number = written_number(given, whole=whole)
        if number is not None:
            return f"write {where}={number:_}"
    return FORMS.get(kind, "see docs/recipes.md").format(**rule, where=where)
