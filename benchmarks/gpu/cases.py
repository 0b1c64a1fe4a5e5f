"""The cases of the first half-hour on a GPU, as `benchmarks/data/gpu_cases.yaml` lists them.

A case names a function and its settings; the function returns what it found. Of recipes it is
given the words of a command. With ``toy`` the words of the file's `toys` come behind a case's
own, so that the same code runs on a CPU within seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from components.config.suggestions import nearest
from components.errors import RecipeError

FILE = Path(__file__).parents[1] / "data" / "gpu_cases.yaml"
CPU = "CPU"  # what a result says of its device where there is no other
Found = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class GpuCase:
    """One measurement in a process of its own.

    ``seconds`` are what it takes on a GPU, process and all; ``least_gib`` is the memory below
    which the device need not try.
    """

    name: str
    part: str
    runs: str
    seconds: float
    least_gib: float
    settings: Mapping[str, Any]

    def run(self) -> Found:
        """Call the function that the case names."""
        module, _, name = self.runs.rpartition(".")
        call: Callable[..., Found] = getattr(import_module(module), name)
        return call(**self.settings)


def read_cases(file: Path = FILE, *, toy: bool = False) -> list[GpuCase]:
    """Read all cases, in the order in which they are run."""
    tree = yaml.safe_load(file.read_text("utf-8"))
    toys = tree["toys"] if toy else {}
    return [
        GpuCase(
            name=name,
            part=part,
            runs=one["runs"],
            seconds=one.get("seconds", tree["seconds"]),
            least_gib=0.0 if toy else one.get("least_gib", 0.0),
            settings=_settings(one, tree["words"], toys),
        )
        for part, cases in tree["parts"].items()
        for name, one in cases.items()
    ]


def cases_of(part: str, names: list[str], cases: list[GpuCase]) -> list[GpuCase]:
    """Choose the named cases of a part, or all of it.

    Raises:
        RecipeError: there is no such part, or no such case in it.
    """
    parts = list(dict.fromkeys(case.part for case in cases))
    if part not in parts:
        raise RecipeError(
            "part", f"there is no part {part!r}", f"choose from {', '.join(parts)}"
        )
    known = {case.name: case for case in cases if case.part == part}
    for name in names:
        if name not in known:
            problem = f"part {part} has no case {name!r}"
            raise RecipeError("case", problem, nearest(name, list(known)))
    return [known[name] for name in names or known]


def _settings(one: Found, words: Mapping[str, list[str]], toys: Mapping[str, Any]) -> Found:
    """Put the words of a case together: what it starts from, its own, and those of its toy."""
    settings = dict(one.get("settings", {}))
    if "of" in one:
        small = toys.get(str(one.get("toy", one["of"])), [])
        settings["words"] = _joined([*words[one["of"]], *settings.get("words", []), *small])
    return {**settings, **toys.get("settings", {}).get(one["runs"], {})}


def _joined(words: list[str]) -> list[str]:
    """Of words with the same key keep the last one."""
    return list({word.partition("=")[0]: word for word in words}.values())
