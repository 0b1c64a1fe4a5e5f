"""Names of nodes for people: those that differ in a number alone are folded, ``n[1-3,7]``."""

import re
from collections.abc import Iterable, Iterator


def fold_names(names: Iterable[str]) -> str:
    """Fold names as Slurm writes them, by their last number; any order, one text."""
    families: dict[tuple[str, int, str], list[int]] = {}
    plain: list[str] = []
    for name in names:
        found = re.fullmatch(r"(.*?)([0-9]+)([^0-9]*)", name)
        if found is None:
            plain.append(name)
            continue
        stem, digits, tail = found.groups()
        families.setdefault((stem, len(digits), tail), []).append(int(digits))
    folded = []
    for (stem, width, tail), numbers in families.items():
        ranges = list(_ranges(sorted(numbers), width))
        several = len(numbers) > 1
        folded.append(
            f"{stem}[{','.join(ranges)}]{tail}" if several else f"{stem}{ranges[0]}{tail}"
        )
    return ",".join([*plain, *folded])


def _ranges(numbers: list[int], width: int) -> Iterator[str]:
    first = last = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number <= last + 1:
            last = number
            continue
        yield f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"
        if number is not None:
            first = last = number
