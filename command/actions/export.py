"""Write a checkpoint of a run as a folder that ``transformers`` loads by itself."""

from typing import cast

from command.arguments import Arguments
from command.outcome import ActionResult
from command.run_checkpoint import export_place, export_trained, open_trained
from components.config.targets import nearest
from components.convert.folder import Rows, check_free
from components.errors import RecipeError
from components.terminal import say, tell

_ROWS = ("published", "padded")


def run(arguments: Arguments) -> ActionResult:
    """Export ``run=FOLDER`` into ``file=FOLDER``, or into the run folder."""
    rows = _read_rows(arguments)
    trained = open_trained(arguments)
    target = arguments.folders.get("file", export_place(trained))
    check_free(target)  # before the weights are read
    family = export_trained(trained, target, rows=rows)
    tokens = trained.chosen.marker.progress.tokens
    say(f"{family.architecture}, trained on {tokens:,} tokens")
    tell(str(target))
    return ActionResult()


def _read_rows(arguments: Arguments) -> Rows:
    rows = arguments.values.get("rows", "published")
    if rows not in _ROWS:
        raise RecipeError("rows", f"{rows!r} is not known", nearest(str(rows), _ROWS))
    return cast("Rows", rows)
