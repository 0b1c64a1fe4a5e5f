"""Whether a tracker's library is here; only who sends needs it, no rank."""

from importlib.util import find_spec

from components.errors import RecipeError


def check_installed(package: str) -> None:
    """Say how to get a library before anything is written or sent.

    Raises:
        RecipeError: ``package``, a key of ``tracking`` too, cannot be imported.
    """
    if find_spec(package) is None:
        raise RecipeError(
            f"tracking.{package}",
            f"{package} is not installed",
            "python -m pip install --require-hashes --no-deps -r requirements/tracking.lock",
        )
