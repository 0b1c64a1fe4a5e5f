"""Would anything be fetched from outside? Ranks read what was prepared; the rest is named."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from components.preflight.verdict import Finding
from components.spec.recipe import Recipe
from components.train.run_folder import RunFolder

# Upper-case words that huggingface_hub takes for yes (its constants.py, ENV_VARS_TRUE_VALUES).
_YES = ("1", "ON", "YES", "TRUE")
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


def check_network(recipe: Recipe, folder: RunFolder, seen: Mapping[str, str]) -> Finding:
    """Name the datasets of the hub that were not prepared, where they cannot be fetched."""
    wanted = [] if (folder.path / "data.json").exists() else list(_of_hub(recipe))
    why = _why_offline(recipe, seen)
    return Finding.model_validate({
        "check": "network",
        "found": f"{', '.join(wanted)} would be fetched" if wanted else "nothing is fetched",
        "expected": f"nothing fetched: {why}" if why else "nothing fetched",
        "rule": "data.sources",
        "verdict": "ok" if not wanted else "bad" if why else "unknown",
        "remedy": "action=prepare or action=stage where there is a network",
    })


def _of_hub(recipe: Recipe) -> Iterator[str]:
    """Yield what is no folder here: a name on the hub, as `datasets` takes it."""
    for source in recipe.data.sources.values():
        if source.dataset is not None and not Path(source.dataset.path).exists():
            yield source.dataset.path


def _why_offline(recipe: Recipe, seen: Mapping[str, str]) -> str:
    """Say by which word of the environment or of the profile this node has no network."""
    for name in _OFFLINE:
        if seen.get(name, "").upper() in _YES:
            return f"{name}={seen[name]}"
    site = recipe.cluster.site
    if not isinstance(site, str) and site.internet is False:
        return "cluster.site.internet=false"
    return ""
