"""Describe a Hugging Face model class as tables, and convert configurations in both directions.

Each setting is one row: its key and default in ``config.json``, and its place in our model
section. Properties of a class without a key are ``fixed``: an import writes them, and an export
requires them. A new family is an existing family with a few changed rows.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.norms import NormSpec
from components.convert.param_mapping import ParamMapping, Weights, map_weights
from components.errors import RecipeError

SAME_NORM = "${model.norm}"  # a recipe's reference to the model's norm
CONTEXT_TOKENS = "context_tokens"  # a value outside the model section
OMIT: Any = object()  # a value that is not written
ANY: Any = object()  # the kind of a value that is not checked
_AS_DEFAULT: Any = object()
HFConfig = Mapping[str, Any]
Section = dict[str, Any]


class DerivedValue(NamedTuple):
    """A value of the model section computed from others, which ``get`` returns by path."""

    rule: str
    compute: Callable[[Callable[[str], Any]], Any]


class Setting(NamedTuple):
    """One key of ``config.json``.

    ``path`` is its place in our model section; without a path, the default is always written.
    ``names`` maps our names of a choice to theirs. ``export`` computes their value from our
    features, ``resolve`` completes or normalizes a value, given all values of the file, and
    ``place`` converts the result to our value. ``kind`` is an example value if the default is
    not one. ``spellings`` are all names of the key, the preferred name first.
    """

    key: str
    default: Any = None
    path: str = ""
    names: Mapping[str, str] | None = None
    export: Callable[[DecoderSpec], Any] | None = None
    resolve: Callable[[Any, HFConfig], Any] | None = None
    place: Callable[[Any, HFConfig], Any] | None = None
    kind: Any = _AS_DEFAULT
    spellings: tuple[str, ...] = ()

    @property
    def example_value(self) -> Any:
        """An example value of the key's type."""
        return self.default if self.kind is _AS_DEFAULT else self.kind

    def export_setting(self, features: DecoderSpec) -> Any:
        """Return the value in ``config.json`` for our model."""
        if self.export is not None:
            return self.export(features)
        if not self.path:
            return self.default
        value = read_feature(features, self.path)
        return value if self.names is None else self.names[value]

    def read_setting(self, config: HFConfig) -> Any:
        """Return the value in a ``config.json``, or its default if missing."""
        *others, last = self.spellings or (self.key,)
        present = [config[name] for name in others if config.get(name) is not None]
        value = present[0] if present else config.get(last, self.default)
        return value if self.resolve is None else self.resolve(value, config)

    def import_value(self, values: HFConfig) -> Any:
        """Return the value for the model section; RecipeError if there is no equivalent."""
        value = values[self.key]
        if self.place is not None:
            return self.place(value, values)
        if self.names is not None:
            return find_name(self.key, value, self.names)
        is_rounded = isinstance(self.default, float) and isinstance(value, int)
        return float(value) if is_rounded else value


Settings = tuple[Setting, ...]


def change_settings(
    rows: Settings, *new: Setting, without: tuple[str, ...] = (), **defaults: Any
) -> Settings:
    """Return a table with changed defaults, without some rows, with new or replaced rows."""
    table = {row.key: row for row in rows if row.key not in without}
    table |= {key: table[key]._replace(default=value) for key, value in defaults.items()}
    return tuple((table | {row.key: row for row in new}).values())


class Requirement(NamedTuple):
    """Requirement on a model. ``{here}`` in the rule is the model's value at ``path``."""

    path: str  # in the model section
    rule: str
    is_met: Callable[[DecoderSpec], bool]

    def describe_rule(self, features: DecoderSpec) -> str:
        if "{here}" not in self.rule:
            return self.rule
        return self.rule.format(here=_show(read_feature(features, self.path)))


def _show(value: Any) -> str:
    if isinstance(value, str):
        return "the model's norm" if value == SAME_NORM else value
    words: dict[Any, str] = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def require_value(path: str, value: Any) -> Requirement:
    """Return the requirement of one value, or of a class by its name."""
    if path.endswith("_target_"):
        value = value.rpartition(".")[2]
    rule = value.rule if isinstance(value, DerivedValue) else _show(value)

    def is_met(features: DecoderSpec) -> bool:
        if not isinstance(value, DerivedValue):
            return bool(read_feature(features, path) == value)
        wanted = value.compute(lambda other: read_feature(features, other))
        return bool(read_feature(features, path) == wanted)

    return Requirement(path, f"it must be {rule}, here {{here}}", is_met)


def _require_name(path: str, names: Mapping[str, str]) -> Requirement:
    rule = f"it must be one of {', '.join(names)}, here {{here}}"
    return Requirement(path, rule, lambda m: read_feature(m, path) in names)


# Requirements of all families, unless a family has a setting or a fixed value for the path.
COMMON = (
    *(
        require_value(path, value)
        for path, value in {
            "norm.center": False,
            "norm.weight": True,
            "norm.bias": False,
            "norm_placement": "before",
            "embedding_norm": None,
            "embedding_scale": "none",
            "logit_cap": None,
            "attention.bias": False,
            "attention.qk_norm": None,
            "attention.output_gate": False,
            "attention.sinks": False,
            "attention.key_value_rank": None,
            "positions.rotary_fraction": 1.0,
            "mlp.bias": False,
            "mlp.swiglu_limit": None,
            "mlp.swiglu_alpha": 1.0,
            "mlp.linear_offset": 0.0,
            "mlp.num_experts": None,
            "mlp.routing": "learned",
            "mlp.scores": "softmax",
            "mlp.weight_scale": 1.0,
            "mlp.num_groups": 1,
            "mlp.balance_rate": None,
            "mlp.shared_ffn_dim": None,
            "mlp.shared_gate": False,
            "dense_mlp": None,
            "pattern": None,
        }.items()
    ),
    Requirement(
        "attention.windows",
        "its queries see all earlier tokens",
        lambda m: set(m.attention.windows) == {"full"},
    ),
    Requirement(
        "attention.scale_dim",
        "it divides scores by the square root of attention.head_dim",
        lambda m: m.attention.scale_dim in {None, m.attention.head_dim},
    ),
    Requirement(
        "parametrization",
        "it multiplies neither embeddings, branches nor logits",
        lambda m: m.is_unscaled,
    ),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class HFFamily:
    """One model class of Hugging Face.

    ``settings`` are the keys that change what the model computes; only training reads
    ``training``. ``fixed`` and ``imported`` map paths of our model section to values: ``fixed``
    values hold for each model of the class, ``imported`` values are written by an import
    because the file has no key. ``accepted`` maps keys to their only supported value.
    ``ignored`` are keys of published files that do not change the model.
    """

    model_type: str
    architecture: str
    settings: Settings
    training: Settings
    fixed: Section
    imported: Section
    requirements: tuple[Requirement, ...] = ()
    accepted: HFConfig = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    normalize_config: Callable[[HFConfig], Section] = (
        dict  # to one spelling of old and new files
    )
    check_config: Callable[[HFConfig], None] = lambda config: None  # before an import

    first_weights: Weights
    layer_weights: Weights
    last_weights: Weights
    mtp_weights: Weights = ()  # of each layer after the last
    weight_prefix: str  # some published folders omit it
    ignored_weights: str  # pattern of buffers in some published folders
    normalize_name: Callable[[str], str] = str  # of a folder's tensor, to the published name
    ignores_more_layers: bool = False

    def write_hf_config(self, features: DecoderSpec) -> Section:
        """Return the keys of ``config.json`` that change what our model computes."""
        return _write_settings(self.settings, features)

    def write_training(self, features: DecoderSpec, context_tokens: int) -> Section:
        """Return the keys of ``config.json`` that only training or a cache reads."""
        values = _write_settings(self.training, features)
        return {
            key: context_tokens if value == CONTEXT_TOKENS else value
            for key, value in values.items()
        }

    def read_hf_config(self, config: HFConfig) -> Section:
        """Return the values in a ``config.json`` of the keys that `write_hf_config` writes."""
        values = self._read_settings(config)
        return {row.key: values[row.key] for row in self.settings}

    def compare_config(
        self, config: HFConfig, features: DecoderSpec
    ) -> list[tuple[str, Any, Any]]:
        """Return ``(key, theirs, ours)`` for each key that differs in our model."""
        theirs, ours = self.read_hf_config(config), self.write_hf_config(features)
        return [(key, theirs[key], ours[key]) for key in ours if theirs[key] != ours[key]]

    def _read_settings(self, config: HFConfig) -> Section:
        values = self.normalize_config(config)
        for row in (*self.settings, *self.training):
            values[row.key] = row.read_setting(values)
        return values

    def import_section(self, config: HFConfig) -> tuple[Section, int | None]:
        """Return our model section without vocabulary, and the context in tokens if known."""
        self.check_config(config)
        values = self._read_settings(config)
        section: Section = {}
        sources: dict[str, Setting] = {}
        for row in (row for row in (*self.settings, *self.training) if row.path):
            value = row.import_value(values)
            if (first := sources.setdefault(row.path, row)) is not row:
                _check_equal(first, row, values)
            set_path(section, row.path, value)

        def get_value(path: str) -> Any:
            return _get_path(section, path)

        for path, value in (*self.fixed.items(), *self.imported.items()):
            set_path(
                section,
                path,
                value.compute(get_value) if isinstance(value, DerivedValue) else value,
            )
        context = section.pop(CONTEXT_TOKENS, None) or get_value("positions.num_positions")
        return section, context

    def all_requirements(self) -> tuple[Requirement, ...]:
        """Return all requirements for a model to be computed by this class."""
        named = (_require_name(row.path, row.names) for row in self.settings if row.names)
        fixed = (require_value(path, value) for path, value in self.fixed.items())
        own = {row.path for row in self.settings} | {*self.fixed, *self.imported}
        common = (row for row in COMMON if row.path not in own)
        return (*self.requirements, *fixed, *named, *common)

    def is_ignored(self, features: DecoderSpec, name: str) -> bool:
        """Whether a folder's tensor does not belong to the recipe's model."""
        if re.search(self.ignored_weights, name):
            return True
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        is_more = layer is not None and int(layer[1]) >= features.num_layers
        return self.ignores_more_layers and is_more

    def param_mappings(self, features: DecoderSpec) -> Iterator[ParamMapping]:
        """Yield the mappings between all tensors of the class and ours."""
        layers = features.num_layers
        yield from map_weights(self.first_weights, features)
        for layer in range(layers):
            yield from map_weights(self.layer_weights, features, layer)
        yield from map_weights(self.last_weights, features)
        for layer in range(layers, layers + features.mtp_depth):
            yield from map_weights(self.mtp_weights, features, layer)


def read_feature(features: DecoderSpec, path: str) -> Any:
    """Return the value at a path of the model section; None if the path does not exist."""
    if path == CONTEXT_TOKENS:
        return CONTEXT_TOKENS
    value: Any = features
    for name in path.replace("_target_", "class_name").split("."):
        value = getattr(value, name, None)
    is_same = path != "norm" and isinstance(value, NormSpec) and value == features.norm
    return SAME_NORM if is_same else value


def set_path(section: Section, path: str, value: Any) -> None:
    """Set a value at a path of nested mappings. ``OMIT`` sets nothing."""
    if value is OMIT:
        return
    *parents, name = path.split(".")
    for parent in parents:
        section = section.setdefault(parent, {})
    section[name] = value


def _get_path(section: HFConfig, path: str) -> Any:
    value: Any = section
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def find_name(key: str, value: str, names: Mapping[str, str]) -> str:
    """Return our name for ``value``, their name of a choice. ``names`` maps ours to theirs."""
    ours = {their: our for our, their in names.items()}
    if value not in ours:
        problem, known = f"unsupported {value!r}", ", ".join(sorted(ours))
        raise RecipeError(key, problem, f"supported: {known}")
    return ours[value]


def _check_equal(first: Setting, second: Setting, values: HFConfig) -> None:
    value, other = values[first.key], values[second.key]
    if value != other:
        problem = f"{other} differs from {first.key}, {value}; a recipe has one value for both"
        fix = "set both to the same value in a copy of the file"
        raise RecipeError(second.key, problem, fix)


def _write_settings(rows: Settings, features: DecoderSpec) -> Section:
    values = ((row.key, row.export_setting(features)) for row in rows)
    return {key: value for key, value in values if value is not OMIT}
