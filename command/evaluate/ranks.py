"""Ask tasks data-parallel: a rank for each device of this machine, each with its share.

The ranks are ``python -m command.evaluate.ranks``, as `ask_ranks` starts them. Which questions
are whose, and how the answers come together, is lm-eval's own data parallelism.
"""

from pathlib import Path
from typing import Any

from command.evaluate.request import TaskRequest
from components.config.schema.types import Section
from components.evaluate.harness import check_installed
from components.evaluate.ranks import ask_ranks, be_a_rank, ranks_here

Tree = dict[str, Any]


class RankWork(Section):
    """What every rank is told: the questions, the exported folder, its dtype, rows at once."""

    request: TaskRequest
    folder: Path
    compute: str | None
    most_rows: int

    def ask(self) -> Tree:
        """Ask, in this process; ranks but the first return no figures."""
        found = self.request.find()
        return found.ask(self.folder, compute=self.compute, most_rows=self.most_rows)


def ask_on_ranks(work: RankWork, ranks: int | None) -> Tree:
    """Return the sections of the result; without ``ranks`` each device here has one.

    Raises:
        RecipeError: more ranks than devices, or what one of them met and the user can mend.
    """
    check_installed()
    count = ranks_here(ranks)
    if count == 1:
        return work.ask()
    work.request.find()  # what is wrong with it is said before anything is started
    return ask_ranks("command.evaluate.ranks", work.model_dump_json(), count)


if __name__ == "__main__":
    be_a_rank(lambda work: RankWork.model_validate_json(work).ask())
