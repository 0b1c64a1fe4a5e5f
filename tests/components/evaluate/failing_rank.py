"""A rank of an evaluation that fails."""

from typing import Any

from components.evaluate.ranks import be_a_rank


def fail(work: bytes) -> dict[str, Any]:
    raise KeyError(work.decode())


if __name__ == "__main__":
    be_a_rank(fail)
