"""One element of a job array: ``python -m data_prep.task STAGES PASS K``.

Does the K-th group of tasks that ``array.json`` in the pass's folder lists, in as many
processes as it says; what is done already is left alone.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from components.errors import RecipeError
from components.terminal import say
from data_prep.stages.array import read_array
from data_prep.stages.executors import Local
from data_prep.stages.plan import read_plan
from data_prep.stages.record import missing_tasks


def main(words: Sequence[str]) -> int:
    """Do the group; 0 done, 2 something that a user can mend."""
    stages, name, element = words
    folder = Path(stages) / name
    array = read_array(folder)
    assert array is not None, "the command writes it before it submits"
    left = missing_tasks(folder, array.groups[int(element)], read_plan(folder).key)
    try:
        Local(workers=array.workers, leave_failures=True).run(folder, left, say)
    except RecipeError as error:
        say(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
