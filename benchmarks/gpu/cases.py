"""GPU cases from `benchmarks/data/gpu_cases.yaml`.

A case names a function and its settings; the function returns its figures. Recipes are given as
the arguments of a command. With ``toy`` the arguments of `toys` in the file follow the case's
arguments, so that the same code runs on a CPU within seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from components.config.suggestions import suggest_similar
from components.errors import RecipeError

FILE = Path(__file__).parents[1] / "data" / "gpu_cases.yaml"
CPU = "CPU"  # the device name in results of machines without an accelerator
ResultFields = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class GpuCase:
    """One measurement in a separate process.

    ``seconds`` is its duration on a GPU including the process start; ``least_gib`` is the
    device memory that it needs.
    """

    name: str
    part: str
    runs: str
    seconds: float
    least_gib: float
    settings: Mapping[str, Any]

    def run(self) -> ResultFields:
        """Call the function of the case."""
        module, _, name = self.runs.rpartition(".")
        call: Callable[..., ResultFields] = getattr(import_module(module), name)
        return call(**self.settings)


def read_cases(file: Path = FILE, *, toy: bool = False) -> list[GpuCase]:
    """Read all cases, in the order of the runs."""
    tree = yaml.safe_load(file.read_text("utf-8"))
    toys = tree["toys"] if toy else {}
    return [
        GpuCase(
            name=name,
            part=part,
            runs=case["runs"],
            seconds=case.get("seconds", tree["seconds"]),
            least_gib=0.0 if toy else case.get("least_gib", 0.0),
            settings=_settings(case, tree["words"], toys),
        )
        for part, cases in tree["parts"].items()
        for name, case in cases.items()
    ]


def select_cases(part: str, names: list[str], cases: list[GpuCase]) -> list[GpuCase]:
    """Select the named cases of a part, or all its cases.

    Raises:
        RecipeError: there is no such part, or the part has no such case.
    """
    parts = list(dict.fromkeys(case.part for case in cases))
    if part not in parts:
        raise RecipeError(
            "part", f"there is no part {part!r}", f"choose from {', '.join(parts)}"
        )
    by_name = {case.name: case for case in cases if case.part == part}
    for name in names:
        if name not in by_name:
            problem = f"part {part} has no case {name!r}"
            raise RecipeError("case", problem, suggest_similar(name, list(by_name)))
    return [by_name[name] for name in names or by_name]


def _settings(
    case: ResultFields, words: Mapping[str, list[str]], toys: Mapping[str, Any]
) -> ResultFields:
    """Join the arguments of a case: of its recipe, its settings and its toy."""
    settings = dict(case.get("settings", {}))
    if "of" in case:
        small = toys.get(str(case.get("toy", case["of"])), [])
        settings["words"] = _merge([*words[case["of"]], *settings.get("words", []), *small])
    return {**settings, **toys.get("settings", {}).get(case["runs"], {})}


def _merge(words: list[str]) -> list[str]:
    """Keep the last argument of each key."""
    return list({word.partition("=")[0]: word for word in words}.values())
