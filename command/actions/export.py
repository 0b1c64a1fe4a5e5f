"""Write a checkpoint of a run as a folder that ``transformers`` loads by itself."""

from command.arguments import Arguments
from command.model_export import export_place, export_trained, open_trained
from components.convert.folder import check_free
from components.terminal import say, tell


def run(arguments: Arguments) -> None:
    """Export ``run=FOLDER`` into ``file=FOLDER``, or into the run folder."""
    trained = open_trained(arguments)
    target = arguments.file or export_place(trained)
    check_free(target)  # before the weights are read
    family = export_trained(trained, target, rows=arguments.rows)
    tokens = trained.chosen.marker.progress.tokens
    say(f"{family.architecture}, trained on {tokens:,} tokens")
    tell(str(target))
