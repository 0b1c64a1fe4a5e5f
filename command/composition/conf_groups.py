"""Compose Hydra's groups: merge files of ``conf/`` and private options into one tree.

Two Hydra plugins read the files, because Hydra's own YAML reader is slow.
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
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.conf import HydraConf
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from command.arguments import list_config_groups
from command.composition.references import resolve_references
from command.files.trusted_paths import conf_folder
from command.files.yaml_file import PlainLoader
from command.recipe.lock_file import CARRIED
from command.recipe.option_file import StoredConfig, read_options
from command.recipe.recipe_chain import RecipeChain
from command.recipe.replacement import replace_in, without_marks
from components.errors import RecipeError
from components.sharing.lock import Lock

YamlTree = dict[str, Any]
SCHEME = "conf"  # of the paths that `ConfFiles` reads
UNCHOSEN = re.compile(r"You must specify '(\w+)'")
RECIPE_CONFIG, GROUP_CONFIG = "chosen", "alone"  # names in Hydra's store


def compose_groups(source: RecipeChain | Lock, choices: Mapping[str, str]) -> YamlTree:
    """Merge the chosen options and the recipe. References are not resolved."""
    if isinstance(source, Lock):  # a bundle's own sections replace those of conf/
        words = [f"~{group}" for group in list_config_groups() if group not in CARRIED]
        words += _chosen_words(choices)
        tree = _compose(conf_folder(), tuple(words), tuple(read_options(choices)))
        carried: YamlTree = source.model_dump(mode="json")["composed"]
        return deepcopy(tree) | carried
    merged = source.merged_tree
    overrides = [{f"override /{group}": name} for group, name in source.options.items()]
    text = json.dumps(without_marks(merged) | {"defaults": [*overrides, "_self_"]})
    stored = read_options({**source.options, **choices})
    stored.append(StoredConfig("recipe", RECIPE_CONFIG, text, "_global_"))
    words = _chosen_words({**choices, "recipe": RECIPE_CONFIG})
    tree = deepcopy(_compose(conf_folder(), tuple(words), tuple(stored)))
    replace_in(tree, merged)
    return tree


def compose_group(group: str, option: str) -> YamlTree:
    """Compose one option of a group by itself, as a recipe that chooses it would."""
    # A profile may choose a scale.
    entries = [{name: chosen} for name, chosen in {"scale": "full", group: option}.items()]
    alone = StoredConfig(None, GROUP_CONFIG, json.dumps({"defaults": entries}), "_global_")
    with _hydra(conf_folder(), [*read_options({group: option}), alone]):
        section: YamlTree = resolve_references(_as_tree(compose(GROUP_CONFIG)))[group]
    return section


def compose_defaults() -> YamlTree:
    """Compose the defaults of all recipes. The model has only the shared keys."""
    words = ("~recipe", "~tokenizer", "model=parts/decoder")
    return deepcopy(_compose(conf_folder(), words, ()))


def _chosen_words(choices: Mapping[str, str]) -> list[str]:
    return [f"{group}={option}" for group, option in sorted(choices.items())]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml may be missing
    """Plain YAML loader that parses numbers and dates as OmegaConf does."""

    yaml_implicit_resolvers = PlainLoader.yaml_implicit_resolvers


class ConfFiles(FileConfigSource):
    """A folder of config groups, read with libyaml."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        text = Path(self.path, self._normalize_file_name(config_path)).read_text("utf-8")
        return ConfigResult(
            config=OmegaConf.create(yaml.load(text, _Loader) or {}),
            path=self.full_path(),
            provider=self.provider,
            header=self._get_header_dict(text),
        )


class ConfSearchPath(SearchPathPlugin):
    """Lets Hydra read its config folder through `ConfFiles`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for entry in search_path.get_path():
            if entry.provider == "main":
                entry.path = f"{SCHEME}://{entry.path}"


@cache
def _compose(conf: Path, words: tuple[str, ...], stored: tuple[StoredConfig, ...]) -> YamlTree:
    """Merge the files with Hydra, once for all points of a sweep with the same choices."""
    with _hydra(conf, stored):
        return _as_tree(compose("config", overrides=list(words)))


@cache
def _prepare_hydra() -> None:
    """Register the plugins and settings that all compositions of this process share."""
    Plugins.instance().register(ConfFiles)
    Plugins.instance().register(ConfSearchPath)
    # Nothing runs through Hydra here: without its own option groups it composes faster.
    ConfigStore.instance().store(
        group="hydra", name="config", node=HydraConf(defaults=[]), provider="hydra"
    )


@contextmanager
def _hydra(conf: Path, stored: Sequence[StoredConfig]) -> Iterator[None]:
    """Initialize Hydra with the files of ``conf`` and the stored configs."""
    _prepare_hydra()
    store = ConfigStore.instance()
    # A bundle removes the recipe (~recipe), and only a group that has files can be removed.
    store.store(group="recipe", name="none", node={}, package="_global_")
    for config in stored:
        node = json.loads(config.text)
        store.store(group=config.group, name=config.name, node=node, package=config.package)
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(conf)):
            yield
    except (HydraException, OmegaConfBaseException) as error:
        raise _as_recipe_error(error) from None
    finally:  # the store is global to the process: another file may have this name next time
        for config in stored:
            configs = store.repo[config.group] if config.group else store.repo
            configs.pop(f"{config.name}.yaml", None)


def _as_recipe_error(error: Exception) -> RecipeError:
    """Convert Hydra's error. For a group without an option, suggest two ways to choose one."""
    problem = str(error).strip().splitlines()[0]
    if (unchosen := UNCHOSEN.search(problem)) is None:
        return RecipeError("recipe", problem, "see the file")
    group = unchosen[1]
    fix = f"write defaults: [NAME] with a recipe, or [override /{group}: NAME]"
    return RecipeError("defaults", f"no {group} is selected", fix)


def _as_tree(config: DictConfig) -> YamlTree:
    tree = OmegaConf.to_container(config, resolve=False)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}
