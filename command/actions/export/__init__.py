"""Write a run's checkpoint for ``transformers``, or a recipe for another trainer."""

from command.actions.export.torchtitan import write_configuration
from command.arguments import Arguments
from command.model_export import export_place, export_trained, open_trained
from components.convert.folder import check_free
from components.terminal import say, tell


def run(arguments: Arguments) -> None:
    """Export ``run=FOLDER`` into ``file=FOLDER``, or into the run folder.

    With ``engine=`` a recipe is written as that trainer's configuration.
    """
    if arguments.engine is not None:
        write_configuration(arguments)
        return
    trained = open_trained(arguments)
    target = arguments.file or export_place(trained)
    check_free(target)  # before the weights are read
    family = export_trained(trained, target, rows=arguments.rows)
    tokens = trained.chosen.marker.progress.tokens
    say(f"{family.architecture}, trained on {tokens:,} tokens")
    tell(str(target))
