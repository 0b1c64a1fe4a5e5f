"""Hydra's part of composition: files of ``conf/`` and private options become one tree.

Hydra asks for the files by two plugins, since its own reader of YAML is slow.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.conf import HydraConf
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from command.arguments import groups
from command.composition.references import resolve_references
from command.files.trusted_paths import conf_folder
from command.files.yaml_file import PlainLoader
from command.recipe.lock_file import CARRIED
from command.recipe.option_file import StoredConfig, read_options
from command.recipe.recipe_chain import RecipeChain
from command.recipe.replacement import replace_in
from components.errors import RecipeError
from components.sharing.lock import Lock

Tree = dict[str, Any]
SCHEME = "conf"  # of paths that `ConfFiles` reads
UNCHOSEN = re.compile(r"You must specify '(\w+)'")
RECIPE_CONFIG, GROUP_CONFIG = "chosen", "alone"  # names in Hydra's store


def compose_groups(source: RecipeChain | Lock, choices: Mapping[str, str]) -> Tree:
    """Merge the chosen options and the recipe; references are not resolved.

    Raises:
        RecipeError: a private option is wrong, or Hydra refuses what is chosen.
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


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml may be missing
    """Plain YAML with numbers and dates as OmegaConf reads them."""

    yaml_implicit_resolvers = PlainLoader.yaml_implicit_resolvers


class ConfFiles(ConfigSource):
    """A folder of groups."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        file = self._file(config_path)
        if not file.is_file():
            raise ConfigLoadError(f"there is no file {file}")
        text = file.read_text("utf-8")
        return ConfigResult(
            config=OmegaConf.create(yaml.load(text, _Loader) or {}),
            path=self.full_path(),
            provider=self.provider,
            header=self._get_header_dict(text),
        )

    def available(self) -> bool:
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        return Path(self.path, config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        return self._file(config_path).is_file()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        inside = Path(self.path, config_path).iterdir()
        is_wanted = Path.is_dir if results_filter is ObjectType.GROUP else Path.is_file
        return sorted({entry.stem for entry in inside if is_wanted(entry)})

    def _file(self, config_path: str) -> Path:
        return Path(self.path, self._normalize_file_name(config_path))


class ConfSearchPath(SearchPathPlugin):
    """Lets Hydra read its config folder through `ConfFiles`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for entry in search_path.get_path():
            if entry.provider == "main":
                entry.path = f"{SCHEME}://{entry.path}"


@cache
def _compose(conf: Path, words: tuple[str, ...], stored: tuple[StoredConfig, ...]) -> Tree:
    """Let Hydra merge the files, once for all points of a sweep that choose the same."""
    with _hydra(conf, stored):
        return _as_tree(compose("config", overrides=list(words)))


@cache
def _prepare_hydra() -> None:
    """Set up what all compositions of this process share."""
    Plugins.instance().register(ConfFiles)
    Plugins.instance().register(ConfSearchPath)
    # Hydra runs nothing here: without the options of its own settings, it composes faster.
    ConfigStore.instance().store(
        group="hydra", name="config", node=HydraConf(defaults=[]), provider="hydra"
    )


@contextmanager
def _hydra(conf: Path, stored: Sequence[StoredConfig]) -> Iterator[None]:
    """Let Hydra read the files of ``conf``, and next to them what was read as data."""
    _prepare_hydra()
    store = ConfigStore.instance()
    # A bundle leaves the recipe out (~recipe); only a group that has files can be.
    store.store(group="recipe", name="none", node={}, package="_global_")
    for config in stored:
        store.store(
            group=config.group, name=config.name, node=config.tree, package=config.package
        )
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(conf)):
            yield
    except (HydraException, OmegaConfBaseException) as error:
        raise _as_recipe_error(error) from None
    finally:  # the store is the process's: a file of this name may lie elsewhere next time
        for config in stored:
            configs = store.repo[config.group] if config.group else store.repo
            configs.pop(f"{config.name}.yaml", None)


def _as_recipe_error(error: Exception) -> RecipeError:
    """Keep what Hydra says; of a group without an option, name the two ways to choose one."""
    problem = str(error).strip().splitlines()[0]
    if (unchosen := UNCHOSEN.search(problem)) is None:
        return RecipeError("recipe", problem, "see the file")
    group = unchosen[1]
    fix = f"begin with defaults: [NAME] of a recipe, or [override /{group}: NAME]"
    return RecipeError("defaults", f"no {group} is chosen", fix)


def _as_tree(config: DictConfig) -> Tree:
    tree = OmegaConf.to_container(config, resolve=False)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}
