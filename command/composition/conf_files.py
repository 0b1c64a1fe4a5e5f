"""Files of ``conf/`` as Hydra asks for them, read by libyaml: Hydra's own reader is slow."""

from pathlib import Path

import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from command.files.yaml_file import PlainLoader

SCHEME = "conf"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
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


def register_reader() -> None:
    """Tell Hydra of both plugins."""
    Plugins.instance().register(ConfFiles)
    Plugins.instance().register(ConfSearchPath)
