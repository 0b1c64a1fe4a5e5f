"""Hydra's part of composition: files of ``conf/`` and private options become one tree.

No other package knows Hydra's or OmegaConf's types.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from command.arguments import groups
from command.composition.conf_files import register_reader
from command.composition.references import resolve_references
from command.files.trusted_paths import conf_folder
from command.recipe.lock_file import CARRIED
from command.recipe.option_file import StoredConfig, read_options
from command.recipe.recipe_chain import RecipeChain
from command.recipe.replacement import replace_in
from components.sharing.lock import Lock

Tree = dict[str, Any]
RECIPE_CONFIG, GROUP_CONFIG = "chosen", "alone"  # names in Hydra's store


def compose_groups(source: RecipeChain | Lock, choices: Mapping[str, str]) -> Tree:
    """Merge the chosen options and the recipe; references are not resolved.

    Raises:
        RecipeError: a private option is wrong.
        HydraException: an option is missing, or two files do not go together.
    """
    if isinstance(source, Lock):  # a bundle's own sections replace those of conf/
        words = [f"~{group}" for group in groups() if group not in CARRIED]
        words += _chosen_words(choices)
        tree = _compose(conf_folder(), tuple(words), tuple(read_options(choices)))
        carried: Tree = source.model_dump(mode="json")["composed"]
        return deepcopy(tree) | carried
    parts = [f"part_{place}" for place, _ in enumerate(source.files)]
    overrides = [{f"override /{group}": name} for group, name in source.options.items()]
    contents = dict(zip(parts, source.sections, strict=True))
    contents[RECIPE_CONFIG] = {"defaults": [*parts, *overrides]}
    stored = read_options({**source.options, **choices})
    stored += [
        StoredConfig("recipe", name, json.dumps(content), "_global_")
        for name, content in contents.items()
    ]
    words = _chosen_words({**choices, "recipe": RECIPE_CONFIG})
    tree = deepcopy(_compose(conf_folder(), tuple(words), tuple(stored)))
    replace_in(tree, source.merged)
    return tree


def compose_group(group: str, option: str) -> Tree:
    """Compose one option of a group by itself, as a recipe that chooses it has it.

    Raises:
        RecipeError: it is a private file, and wrong.
    """
    # A profile may choose a scale.
    entries = [{name: chosen} for name, chosen in {"scale": "full", group: option}.items()]
    alone = StoredConfig(None, GROUP_CONFIG, json.dumps({"defaults": entries}), "_global_")
    with _hydra(conf_folder(), [*read_options({group: option}), alone]):
        section: Tree = resolve_references(_as_tree(compose(GROUP_CONFIG)))[group]
    return section


def compose_defaults() -> Tree:
    """Compose what holds where no recipe says otherwise; of a model what all have."""
    words = ("~recipe", "~tokenizer", "model=parts/decoder")
    return deepcopy(_compose(conf_folder(), words, ()))


def _chosen_words(choices: Mapping[str, str]) -> list[str]:
    return [f"{group}={option}" for group, option in sorted(choices.items())]


@cache
def _compose(conf: Path, words: tuple[str, ...], stored: tuple[StoredConfig, ...]) -> Tree:
    """Let Hydra merge the files, once for all points of a sweep that choose the same."""
    with _hydra(conf, stored):
        return _as_tree(compose("config", overrides=list(words)))


@cache
def _prepare_hydra() -> None:
    """Set up what all compositions of this process share."""
    register_reader()
    store = ConfigStore.instance()
    # Hydra runs nothing here: without the options of its own settings, it composes faster.
    store.store(group="hydra", name="config", node=HydraConf(defaults=[]), provider="hydra")
    # A bundle leaves the recipe out (~recipe); only a group that has files can be.
    store.store(group="recipe", name="none", node={}, package="_global_")


@contextmanager
def _hydra(conf: Path, stored: Sequence[StoredConfig]) -> Iterator[None]:
    """Let Hydra read the files of ``conf``, and next to them what was read as data."""
    _prepare_hydra()
    store = ConfigStore.instance()
    for config in stored:
        store.store(
            group=config.group, name=config.name, node=config.tree, package=config.package
        )
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(conf)):
            yield
    finally:  # the store is the process's: a file of this name may lie elsewhere next time
        for config in stored:
            configs = store.repo[config.group] if config.group else store.repo
            configs.pop(f"{config.name}.yaml", None)


def _as_tree(config: DictConfig) -> Tree:
    tree = OmegaConf.to_container(config, resolve=False)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}
