"""Jobs to predict, whose sizes a test chooses."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel

from components.config.model_spec.attention import AttentionSpec
from components.config.model_spec.decoder import DecoderSpec
from components.config.model_spec.feed_forward import FeedForwardSpec
from components.config.model_spec.initialization import NormalSpec
from components.config.model_spec.norms import NormSpec
from components.config.model_spec.positions import PositionsSpec
from components.config.rank_groups import RankGroups
from components.config.schema.cluster import Hardware
from components.config.schema.sections import Parallelism
from components.config.stages import SPLIT_SCHEDULES
from components.planner.job import TrainingJob
from components.planner.software import OURS, SoftwareModel, read_software
from tests.components.layouts import parallelism

ROOT = Path(__file__).resolve().parents[3]
FIELDS = Parallelism.model_fields


def gpt(*, dim: int, num_layers: int, num_heads: int, vocab_size: int = 51_200) -> DecoderSpec:
    """GPT's block: four times as wide inside, learned positions, biases."""
    return DecoderSpec(
        dim=dim,
        num_layers=num_layers,
        vocab_size=vocab_size,
        padded_vocab_size=vocab_size,
        tied_embeddings=True,
        attention=AttentionSpec(
            num_heads=num_heads, num_kv_heads=num_heads, head_dim=dim // num_heads, bias=True
        ),
        mlp=FeedForwardSpec(ffn_dim=4 * dim, gated=False, bias=True),
        norm=NormSpec(eps=1e-5, center=True, weight=True, bias=True),
        positions=PositionsSpec(num_positions=2_048),
        initialization=NormalSpec(std=0.02, residual="scaled", padding_row=None),
    )


GIB = 2**30
SMALL = gpt(dim=2_048, num_layers=16, num_heads=16)
MIDDLE = gpt(dim=4_096, num_layers=32, num_heads=32)
LARGE = gpt(dim=8_192, num_layers=80, num_heads=64)


Model = TypeVar("Model", bound=BaseModel)


def with_values(model: Model, **changes: Any) -> Model:
    """Copy a model with changed fields; a mapping changes those of a section."""
    sections = {name: getattr(model, name) for name in changes}
    update = {
        name: with_values(sections[name], **value)
        if isinstance(value, dict) and isinstance(sections[name], BaseModel)
        else value
        for name, value in changes.items()
    }
    return model.model_copy(update=update)


class Placed(NamedTuple):
    """A layout, and where its layers and ranks are."""

    layout: Parallelism
    others: dict[str, Any]

    @property
    def groups(self) -> RankGroups:
        return RankGroups(self.layout, self.others["devices_per_node"])


def layout(**changes: Any) -> Placed:
    """One rank, unless a test says more; layers are dealt evenly."""
    stages = changes.get("stages_per_rank", 1) * changes.get("pipeline", 1)
    layers = changes.pop("num_layers", 32)
    others = {
        "devices_per_node": 8,
        "layers_by_stage": tuple([layers // stages] * stages),
        "head_stage": stages - 1,
        "mtp_depth": 0,
        "splits_backward": changes.get("schedule") in SPLIT_SCHEDULES,
    }
    others |= {key: changes.pop(key) for key in list(changes) if key in others}
    buckets = {"bucket_elements": changes.pop("bucket_elements", 0)}  # as no recipe has
    return Placed(parallelism(**changes).model_copy(update=buckets), others)


def job(shape: DecoderSpec, where: Placed, **changes: Any) -> TrainingJob:
    """Mixed precision with float32 accumulation, one sequence of 4,096 tokens a microbatch."""
    values: dict[str, Any] = {
        "sequence_length": 4_096,
        "microbatches": 8,
        "compute": "bfloat16",
        "weight_bytes": 2,
        "gradient_bytes": 2,
        "accumulate_bytes": 4,
        "shard_gradient_bytes": 0,
        "master_bytes": 4,
        "moment_bytes": 8,
        "cast_bytes": 0,
        "reduce_bytes": 4,
        "gather_bytes": 2,
        "saved_bytes": 14,
        "dropout": True,
        "fused_attention": True,
        "attention_passes": 1,
    }
    of_layout = {key: changes.pop(key) for key in list(changes) if key in FIELDS}
    placed = where.layout.model_copy(update=of_layout)
    return TrainingJob(shape=shape, layout=placed, **where.others, **(values | changes))


@cache
def hopper() -> Hardware:
    """The one profile whose links are measured."""
    file = ROOT / "conf" / "cluster" / "hopper.yaml"
    return Hardware.model_validate(yaml.safe_load(file.read_text("utf-8"))["hardware"])


@cache
def ours() -> SoftwareModel:
    return read_software(OURS)
