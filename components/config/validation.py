"""Validate one section of a recipe; the error has one line for each invalid field."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from components.config.schema import types
from components.config.suggestions import suggest_key, suggest_similar, written_number
from components.errors import RecipeError

S = TypeVar("S", bound=BaseModel)
# Steps of a pydantic error location that are no keys: the member of a union.
TAGS = rf"{re.escape(types.SECTION.tag)}|{re.escape(types.WORD.tag)}"
MEMBER = re.compile(
    rf"{TAGS}|(constrained-)?(int|float|str|bool)|(literal|tuple|list|dict)\[.*|\[key\]"
)
QUOTED = re.compile(r"'([^']*)'")
# Fixes by pydantic's error type.
FORMS = {
    "greater_than": "write a number above {gt:g}",
    "greater_than_equal": "write {ge:g} or more",
    "less_than": "write a number below {lt:g}",
    "less_than_equal": "write {le:g} or less",
    "finite_number": "write a finite number",
    "int_type": "write an integer, such as 8 or 1_000_000",
    "float_type": "write a number, such as 0.5 or 3e-4",
    "bool_type": "write {where}=true or {where}=false",
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type"), "write a mapping of keys to values"
    ),
    "word_or_section": "write none, or a mapping of keys to values",
    "string_pattern_mismatch": "write a string that matches {pattern}",
    "tuple_type": "write a list: {where}=[...]",
    "too_short": "list at least {min_length}",
    "string_type": "write a string; quote a string that looks like a number",
}


def read_section(kind: type[S], tree: Mapping[str, Any], path: str) -> S:
    """Validate one section; a RecipeError lists each invalid field below ``path`` on a line."""
    try:
        return kind.model_validate(dict(tree))
    except ValidationError as failure:
        # Unknown keys first: a misspelled key often explains a missing key.
        errors = sorted(failure.errors(), key=lambda error: error["type"] != "extra_forbidden")
        for error in errors:
            raised = error.get("ctx", {}).get("error")
            if isinstance(raised, RecipeError):  # raised by a validator, more specific
                raise raised from None
        problems = [_describe_error(error, kind, path) for error in errors]
    where, problem, _ = problems[0]
    others = [f"{place}: {what}" for place, what, _ in problems[1:]]
    fixes = dict.fromkeys(fix for _, _, fix in problems)
    raise RecipeError(where, "\n".join([problem, *others]), "; ".join(fixes).replace("?;", "?"))


def read_value(kind: Any, value: object, path: str) -> Any:
    """Validate one value strictly; a RecipeError contains the first error."""
    try:
        return TypeAdapter(kind, config=ConfigDict(strict=True)).validate_python(value)
    except ValidationError as failure:
        raise RecipeError(*_describe_error(failure.errors()[0], BaseModel, path)) from None


def _describe_error(error: Any, kind: type[BaseModel], path: str) -> tuple[str, str, str]:
    """Return path, problem and fix of a pydantic error."""
    steps = [step for step in error["loc"] if not MEMBER.fullmatch(str(step))]
    where = ".".join(map(str, [path, *steps] if path else steps))
    if error["type"] == "extra_forbidden":
        there = types.sections_at(kind, steps[:-1])
        known = [key for section in there for key in types.fields_of(section)]
        return where, "unknown key", suggest_key(where, known)
    if error["type"] == "missing":
        return where, "missing", f"set {where}=..."
    value, form = error["input"], error["type"]
    if types.WORD.tag in error["loc"]:
        form = "word_or_section"
    problem = f"{error['msg'][0].lower()}{error['msg'][1:]}, got {value!r}"
    return where, problem, _suggest_fix(form, error.get("ctx", {}), value, where)


def _suggest_fix(kind: str, rule: Mapping[str, Any], given: object, where: str) -> str:
    """Return the fix of a pydantic error: a valid value or the form of one."""
    if kind == "literal_error":
        listed = rule["expected"]  # 'a', 'b' or 'c'; or 1, 2 or 3
        choices = QUOTED.findall(listed) or listed.replace(" or ", ", ").split(", ")
        return suggest_similar(str(given), choices)
    whole = kind.startswith("int")
    if whole or kind.startswith("float"):
        number = written_number(given, whole=whole)
        if number is not None:
            return f"write {where}={number:_}"
    return FORMS.get(kind, "see docs/recipes.md").format(**rule, where=where)
