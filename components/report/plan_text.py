"""Terminal charts of a plan: device memory and the pipeline's timeline.

Each pass is the number of its microbatch and a line whose length is its duration. A step that
is wider than the terminal is cut in the middle, where the pattern repeats.
"""

from components.planner.memory import Memory
from components.planner.timeline import RankLine, Timeline

_LINES = {"forward": "─", "backward": "═", "input": "≈", "weights": "~"}
_SIGNS = {
    "forward": "0── forward pass of microbatch 0",
    "backward": "0══ its backward pass",
    "input": "0≈≈ the gradient of its input",
    "weights": "0~~ the gradient of its weights",
}
_WAITS, _CUT = "·", " … "
# Minimum characters of a pass: its number and some of its line.
_READABLE = 3.0
_LONGEST = 10_000  # maximum step length in forward passes; beyond it short passes are not drawn
_MOST_RANKS, _SHOWN_AT_EACH_END = 16, 6
_HEAD, _TAIL = "rank ", "  waits  keeps"


def timeline_rows(timeline: Timeline, width: int) -> list[str]:
    """Return a heading, one row per rank and a legend, ``width`` characters wide.

    ``waits`` is the fraction of time in which a rank is idle, ``keeps`` the maximum number of
    microbatches whose activations it keeps.
    """
    room = width - len(_HEAD) - len(_TAIL)
    scale = characters_per_second(timeline, room)
    rows = [f"{_HEAD}{f'{timeline.total_seconds:.3g} s of passes':<{room}}{_TAIL}"]
    for rank in shown_ranks(len(timeline.ranks)):
        if rank is None:
            rows.append("   …")
            continue
        line = timeline.ranks[rank]
        drawn = _cut(_draw(line, round(timeline.total_seconds * scale), scale), room)
        waits = f"{timeline.waiting_fraction(rank):.1%}"
        rows.append(f"{rank:>4} {drawn:<{room}}{waits:>7}{line.in_flight:>7.3g}")
    kinds = {block.kind for block in timeline.ranks[0].blocks}
    signs = (text for kind, text in _SIGNS.items() if kind in kinds)
    return [*rows, f"     {', '.join([*signs, '· waits'])}"]


def shown_ranks(count: int) -> list[int | None]:
    """Return the ranks that have a row. ``None`` represents the ranks in between."""
    if count <= _MOST_RANKS:
        return list(range(count))
    ends = _SHOWN_AT_EACH_END
    return [*range(ends), None, *range(count - ends, count)]


def characters_per_second(timeline: Timeline, room: int) -> float:
    """Return the scale: full width if passes stay readable, else pipeline filling takes half.

    A forward pass then has between one and three characters.
    """
    whole = room / timeline.total_seconds
    blocks = timeline.ranks[0].blocks
    forward = min(block.end - block.start for block in blocks if block.kind == "forward")
    if whole * forward >= _READABLE or forward * _LONGEST <= timeline.total_seconds:
        return whole
    filled = next(block.end for block in blocks if block.kind in {"backward", "input"})
    half = (room - len(_CUT)) // 2
    return max(whole, 1 / forward, min(_READABLE / forward, half / filled))


def _draw(line: RankLine, length: int, scale: float) -> str:
    drawn = [_WAITS] * length
    for block in line.blocks:
        start, end = round(block.start * scale), round(block.end * scale)
        number, sign = str(block.microbatch), _LINES[block.kind]
        # Without space for the number and a line, only the line is drawn.
        if len(number) >= end - start:
            number = ""
        drawn[start:end] = number + sign * (end - start - len(number))
    return "".join(drawn)


def _cut(drawn: str, room: int) -> str:
    if len(drawn) <= room:
        return drawn
    half = (room - len(_CUT)) // 2
    return drawn[:half] + _CUT + drawn[-half:]


_BAR = 24


def memory_rows(memory: Memory) -> list[str]:
    """Return a bar of memory use for each displayed rank."""
    rows, limit = [], memory.usable_bytes
    for rank in shown_ranks(len(memory.by_stage)):
        if rank is None:
            rows.append("   …")
            continue
        peak = memory.by_stage[rank]["peak_bytes"]
        filled = min(round(_BAR * peak / limit), _BAR)
        over = "!" if peak > limit else ""
        rows.append(f"{rank:>4} {'█' * filled}{'·' * (_BAR - filled)}{over}")
    return rows
