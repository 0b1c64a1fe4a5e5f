"""The GPU's tests start the program as those of its life do."""

from tests.life.conftest import home, program

__all__ = ["home", "program"]
