"""The errors that a user can mend keep their parts wherever they go."""

import pickle

from components.errors import RecipeError


def test_an_error_is_pickled_with_all_parts() -> None:
    error = RecipeError("budget.seed", "-1 is negative", "use 0 or more")
    arrived = pickle.loads(pickle.dumps(error))
    parts = (arrived.path, arrived.problem, arrived.remedy)
    assert parts == (error.path, error.problem, error.remedy)
    assert str(arrived) == "budget.seed: -1 is negative\n  use 0 or more"
