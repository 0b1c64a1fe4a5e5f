"""No key of a recipe is dropped in silence: each is said, checked, or no part of training."""

import importlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from command.actions.emit import checks
from command.arguments import read_point
from command.compose import compose_recipe
from command.options import Trainer
from components.config.phases import recipes_of
from components.config.schema.recipe import Recipe
from components.config.user_overrides import leaves
from components.errors import RecipeError
from tests.command.emit.test_megatron_bridge import apertus
from tests.recipes import NAMES
