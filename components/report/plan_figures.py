"""The charts of a plan: the pipeline's step on a clock, and what fills the memory."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from components.planner.timeline import Timeline, TimelineBlock
from components.report.figures import colour, empty_figure
from components.report.plan_tables import GIB, PARTS

_KINDS = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("weights", "gradient of the weights"),
)
# A browser still zooms smoothly over so many bars, and reads so many numbers on them.
MOST_BLOCKS, _MOST_NUMBERED = 10_000, 2_000
# Those of the other charts, and three more: a legend needs one for each part.
_SHADES = (*(colour(place) for place in range(7)), "#6f6fc0", "#7d8a3c", "#8b929c")
_ROW_PIXELS, _FRAME_PIXELS = 24, 110


def timeline_figure(timeline: Timeline) -> go.Figure:
    """Draw each pass as a bar; of a long step, the first and the last microbatches alone."""
    height = _FRAME_PIXELS + _ROW_PIXELS * len(timeline.ranks)
    figure = empty_figure("seconds from the start of the step", "pipeline rank", height=height)
    figure.update_layout(barmode="overlay", bargap=0.15, dragmode="zoom")
    figure.update_yaxes(autorange="reversed", fixedrange=True, dtick=1, showgrid=False)
    figure.update_xaxes(range=[0, timeline.seconds], exponentformat="none")
    drawn = drawn_blocks(timeline)
    numbered = len(drawn) <= _MOST_NUMBERED
    for index, (kind, name) in enumerate(_KINDS):
        chosen = [(rank, block) for rank, block in drawn if block.kind == kind]
        if chosen:
            _add_bars(figure, name, colour(index), chosen, numbered=numbered)
    return figure


def _add_bars(
    figure: go.Figure,
    name: str,
    shade: str,
    chosen: list[tuple[int, TimelineBlock]],
    *,
    numbered: bool,
) -> None:
    figure.add_bar(
        orientation="h",
        name=name,
        y=[rank for rank, _ in chosen],
        base=[_rounded(block.start) for _, block in chosen],
        x=[_rounded(block.end - block.start) for _, block in chosen],
        customdata=[[b.microbatch, b.stage, _rounded(b.end)] for _, b in chosen],
        text=[str(block.microbatch) for _, block in chosen] if numbered else None,
        textposition="inside",
        insidetextanchor="start",
        textangle=0,
        marker={"color": shade, "line": {"width": 0}},
        hovertemplate=f"{name} of microbatch %{{customdata[0]}}, stage %{{customdata[1]}}<br>"
        "%{base:.5g} to %{customdata[2]:.5g} s<extra></extra>",
    )


def drawn_blocks(timeline: Timeline) -> list[tuple[int, TimelineBlock]]:
    """Pair each block with its rank; from both ends of the step where they are too many."""
    every = [(rank, b) for rank, line in enumerate(timeline.ranks) for b in line.blocks]
    if len(every) <= MOST_BLOCKS:
        return every
    count = 1 + max(block.microbatch for _, block in every)
    ends = max(1, MOST_BLOCKS * count // len(every) // 2)
    return [(rank, b) for rank, b in every if not ends <= b.microbatch < count - ends]


def cut_microbatches(timeline: Timeline) -> tuple[int, int] | None:
    """Return the first and last microbatch that the chart leaves out, if it does."""
    shown = {block.microbatch for _, block in drawn_blocks(timeline)}
    left = [
        block.microbatch for block in timeline.ranks[0].blocks if block.microbatch not in shown
    ]
    return (min(left), max(left)) if left else None


def memory_figure(memory: Mapping[str, Any]) -> go.Figure:
    """Stack what each pipeline rank holds at its peak, and mark what a device has.

    The peak is either in the passes or in the optimizer's step: the lower one is left out.
    """
    stages = memory["by_stage"]
    height = _FRAME_PIXELS + _ROW_PIXELS * len(stages)
    figure = empty_figure("GiB a device", "pipeline rank", height=height)
    figure.update_layout(barmode="stack", bargap=0.25, legend={"traceorder": "normal"})
    figure.update_yaxes(autorange="reversed", fixedrange=True, dtick=1, showgrid=False)
    for part, shade in zip((*PARTS, "step", "base"), _SHADES, strict=True):
        held = [stage[f"{part}_bytes"] for stage in stages]
        if any(held):
            figure.add_bar(
                orientation="h",
                name=part,
                y=list(range(len(stages))),
                x=[_rounded(each / GIB) for each in held],
                marker={"color": shade, "line": {"width": 0}},
                hovertemplate=f"{part}: %{{x:.3f}} GiB<extra></extra>",
            )
    figure.add_vline(x=memory["usable_bytes"] / GIB, line={"color": "#c4506b", "dash": "dash"})
    return figure


def _rounded(value: float) -> float:
    """Seven digits: more than a screen shows, and a third of the file."""
    return float(f"{value:.7g}")
