"""The charts of a plan in a terminal: how full devices are, the pipeline's timeline.

Each pass is its microbatch's number and a line as long as it takes. A step that is wider than
the terminal loses its middle, where every microbatch does as the one before.
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
# The number of a pass and some of its line.
_READABLE = 3.0
_LONGEST = 10_000  # forward passes: of stages so unlike the short ones are not drawn
_MOST_RANKS, _SHOWN_AT_EACH_END = 16, 6
_HEAD, _TAIL = "rank ", "  waits  keeps"


def timeline_rows(timeline: Timeline, width: int) -> list[str]:
    """Write a heading, a row a rank and what the signs mean, ``width`` characters wide.

    ``waits`` is the part of the time in which a rank computes nothing, ``keeps`` the most
    microbatches whose activations it holds.
    """
    room = width - len(_HEAD) - len(_TAIL)
    scale = characters_per_second(timeline, room)
    rows = [f"{_HEAD}{f'{timeline.seconds:.3g} s of passes':<{room}}{_TAIL}"]
    for rank in shown_ranks(len(timeline.ranks)):
        if rank is None:
            rows.append("   …")
            continue
        line = timeline.ranks[rank]
        drawn = _cut(_draw(line, round(timeline.seconds * scale), scale), room)
        waits = f"{timeline.waiting_fraction(rank):.1%}"
        rows.append(f"{rank:>4} {drawn:<{room}}{waits:>7}{line.in_flight:>7.3g}")
    kinds = {block.kind for block in timeline.ranks[0].blocks}
    signs = (text for kind, text in _SIGNS.items() if kind in kinds)
    return [*rows, f"     {', '.join([*signs, '· waits'])}"]


def shown_ranks(count: int) -> list[int | None]:
    """Choose the ranks that have a row; ``None`` stands for those between."""
    if count <= _MOST_RANKS:
        return list(range(count))
    ends = _SHOWN_AT_EACH_END
    return [*range(ends), None, *range(count - ends, count)]


def characters_per_second(timeline: Timeline, room: int) -> float:
    """Take all the room if passes stay readable, else the filling of the pipeline fills half.

    A forward pass then has between one and three characters.
    """
    whole = room / timeline.seconds
    blocks = timeline.ranks[0].blocks
    forward = min(block.end - block.start for block in blocks if block.kind == "forward")
    if whole * forward >= _READABLE or forward * _LONGEST <= timeline.seconds:
        return whole
    filled = next(block.end for block in blocks if block.kind in {"backward", "input"})
    half = (room - len(_CUT)) // 2
    return max(whole, 1 / forward, min(_READABLE / forward, half / filled))


def _draw(line: RankLine, length: int, scale: float) -> str:
    drawn = [_WAITS] * length
    for block in line.blocks:
        start, end = round(block.start * scale), round(block.end * scale)
        number, sign = str(block.microbatch), _LINES[block.kind]
        # Where there is no room for the number and a line, the line alone says what it is.
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
    """Write a bar for each of the shown ranks: how full its device is."""
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
