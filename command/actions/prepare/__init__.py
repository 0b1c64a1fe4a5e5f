"""Build the data that a recipe names: clean text, tokenizer, packed token files, manifest."""

from pathlib import Path

from command.actions.prepare.stage import stage_run
from command.arguments import Arguments
from command.composition.compose import compose_recipe
from command.evaluate.lists import fetch_lists
from command.prepared_data import prepare_data
from components.terminal import say, tell
from data_prep.task import QueuedError


def run(arguments: Arguments) -> None:
    """Prepare, and print what the stages did and where the data is; with ``tasks=`` theirs.

    ``stage=true`` collects all of it in one folder, for a machine without internet.
    """
    if arguments.stage:
        stage_run(arguments)
        return
    recipe = compose_recipe(arguments)
    if arguments.tasks:
        for place in fetch_lists(arguments, Path(recipe.data.folder)):
            tell(str(place))
        return
    try:
        data = prepare_data(recipe, arguments.site, anew=True)
    except QueuedError as error:
        tell(str(error))
        return
    tell(data["folder"])
    for name, drawn in data["mixture"].items():
        share, epochs = drawn["promised_share"], drawn["epochs"]
        say(f"{name}: {share:.4%} of the budget, read {epochs:.2f} times")
