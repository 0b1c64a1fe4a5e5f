"""Tokenizer points of a study: each is trained here and measured on held-out text."""

import json

from command.composition.compose import compose_recipe
from command.study.outcomes import COUNTS, Poll, counted_in
from command.study.request import StudyRequest
from command.study.schema import TRAINED_ON, Point
from components.build import build_node
from components.data.files import replace_atomically
from components.terminal import log_line
from data_prep.fertility import EVERY, measure_tokenizer


def count_point(request: StudyRequest, point: Point) -> Poll:
    """Train the tokenizer of a point into its folder and measure it, unless already done."""
    folder = request.folder_of(point)
    if not (folder / COUNTS).is_file():
        recipe = compose_recipe(request.arguments_of(point))
        log_line(f"tokenizer: {folder.name}")
        folder.mkdir(parents=True, exist_ok=True)
        measured = measure_tokenizer(
            sources=recipe.data.sources,
            shares=recipe.data_phases[0][2],
            tokenizer=build_node(recipe.tokenizer, "tokenizer"),
            trained_on=str(point.get(TRAINED_ON, EVERY)),
            held_out_fraction=recipe.data.held_out_fraction,
            sample_bytes=recipe.data.tokenizer_sample_bytes,
            folder=folder,
        )
        with replace_atomically(folder / COUNTS) as file:
            file.write(json.dumps(measured, indent=1).encode() + b"\n")
    key = str(request.study.objective.measured)
    return lambda: counted_in(folder, key)
