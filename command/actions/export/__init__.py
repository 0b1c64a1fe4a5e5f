"""Write a run's checkpoint for ``transformers``, or a recipe for another trainer."""

from command.actions.export.torchtitan import write_configuration
from command.arguments import Arguments
from command.model_export import export_place, export_trained, open_trained
from components.convert.folder import check_free
from components.terminal import log_line, print_output


def run(arguments: Arguments) -> None:
    """Export ``run=FOLDER`` into ``file=`` or the run folder, or a recipe for ``engine=``."""
    if arguments.engine is not None:
        write_configuration(arguments)
        return
    trained = open_trained(arguments)
    target = arguments.file or export_place(trained)
    check_free(target)  # before the weights are read
    family = export_trained(trained, target, rows=arguments.rows)
    tokens = trained.chosen.marker.progress.tokens
    log_line(f"{family.architecture}, trained on {tokens:,} tokens")
    print_output(str(target))
