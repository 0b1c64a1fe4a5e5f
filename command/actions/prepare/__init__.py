"""Build the data that a recipe names: clean text, tokenizer, packed token files, manifest."""

from pathlib import Path

from command.actions.prepare.stage import stage_run
from command.arguments import Arguments
from command.composition.compose import compose_recipe
from command.evaluate.lists import fetch_lists
from command.prepared_data import prepare_data
from components.terminal import log_line, print_output
from data_prep.task import QueuedError


def run(arguments: Arguments) -> None:
    """Prepare the data, and print their folder and the mixture's shares.

    With ``tasks=`` prepare evaluation tasks instead. ``stage=true`` collects all files in one
    folder, for a machine without internet.
    """
    if arguments.stage:
        stage_run(arguments)
        return
    recipe = compose_recipe(arguments)
    if arguments.tasks:
        for place in fetch_lists(arguments, Path(recipe.data.folder)):
            print_output(str(place))
        return
    try:
        data = prepare_data(recipe, arguments.site, force=True)
    except QueuedError as error:
        print_output(str(error))
        return
    print_output(data["folder"])
    for name, drawn in data["mixture"].items():
        share, epochs = drawn["promised_share"], drawn["epochs"]
        log_line(f"{name}: {share:.4%} of the budget, read {epochs:.2f} times")
