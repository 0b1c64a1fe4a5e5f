"""Megatron-Bridge (github.com/NVIDIA-NeMo/Megatron-Bridge, commit 067f987): a Python file.

It builds a ``ConfigContainer`` (src/megatron/bridge/training/config.py) and trains by it, as
the project's own recipes do; the model is a ``GPTModelProvider`` with Megatron's arguments.
"""

from collections.abc import Iterator

from command.actions.emit import TrainerFiles, UnsaidKey, refuse
from command.actions.emit.checks import (
    kind_of,
    unmet,
    unsaid,
    unsaid_by_all,
)
from command.actions.emit.megatron_sections import NORMS, sections
from components.config.schema.recipe import Recipe
from components.config.schema.types import thaw
from components.convert import family
from components.convert.family import Need
from components.convert.features import Features, read_features

COMMIT = "067f987"
AS_IS = "a model with what Megatron's GPT lacks can only be trained here"
NOTES = (
    "data: Megatron shuffles and blends its indexed files by a rule of its own; put those of "
    "sources that name none at tokens/SOURCE (data.write_megatron=true writes such files)",
    "guard, watchdog, evaluation, profiler and tracking are not said: Megatron-Bridge has its "
    "own; it keeps every checkpoint",
)
# What it says of the keys that the others refuse.
SAYS = frozenset({
    *("schedule.planned_tokens", "schedule.decay_shape", "data.loss_after_eod"),
    *("precision.reduce", "model.dropout", "model.attention.dropout"),
})
SCHEDULES = ("Cosine", "WarmupStableDecay")
ROTATIONS = {"Rotary", "InterleavedRotary"}
LLAMA3 = (1.0, 4.0, 8_192)  # low and high factor, first length: numbers of its code


def _is_llama3(m: Features) -> bool:
    slow = m.positions.scaling
    return slow is None or (
        slow.kind == "Llama3Scaling"
        and (slow.low_frequency_factor, slow.high_frequency_factor, slow.original_tokens)
        == LLAMA3
    )


NEEDS = (
    Need("positions", "it has rotary positions", lambda m: m.positions.kind in ROTATIONS),
    Need("positions.base", "it is a whole number", lambda m: (m.positions.base or 0) % 1 == 0),
    Need("positions.scaling", "it slows rotations as Llama 3.1 does", _is_llama3),
    Need("positions.local_base", "it has one", lambda m: m.positions.local_base is None),
    Need(
        "positions.skip_every",
        "layers without rotation divide the layers",
        lambda m: m.num_layers % (m.positions.skip_every or 1) == 0,
    ),
    Need("norm", "it has not {norm}", lambda m: m.norm.kind in NORMS),
    Need(
        "attention.qk_norm",
        "it is the model's norm, of each head",
        lambda m: (
            m.attention.qk_norm is None
            or (m.attention.norms_heads and m.attention.qk_norm == m.norm)
        ),
    ),
    Need("mlp.bias", "all of its maps have one", lambda m: m.mlp.bias == m.attention.bias),
    Need("mlp.gated", "its MLP of silu is gated", lambda m: m.mlp.gated),
    Need("mlp.activation", "it has silu", lambda m: m.mlp.activation == "silu"),
    *(family.NO_EXPERTS, family.NORM_BEFORE, family.NO_WINDOWS, family.PLAIN_ATTENTION),
    *(family.NO_EMBEDDING_NORM, family.NO_CAP),
)


def write(recipe: Recipe, asked: str) -> TrainerFiles:
    """Say the recipe.

    Raises:
        RecipeError: something of it cannot be said; with all of that.
    """
    features = read_features(thaw(recipe.model))
    refuse(f"Megatron-Bridge {COMMIT}", _unsaid(recipe, features))
    words = " ".join(asked.split())  # a comment is one line
    text = HEAD.format(commit=COMMIT, words=words)
    for name, (kind, values) in sections(recipe, features).items():
        text += f"        {name}={kind}(\n"
        text += "".join(f"            {key}={value!r},\n" for key, value in values.items())
        text += "        ),\n"
    file = f"{recipe.name}.py"
    return TrainerFiles({file: text + FOOT}, f"torchrun --nproc_per_node=N {file}", NOTES)


HEAD = """# Written for Megatron-Bridge {commit} by `python run.py {words}`.
import torch
import torch.nn.functional as F
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training import config as bridge
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.tokenizers.config import TokenizerConfig


def pretrain_config() -> bridge.ConfigContainer:
    return bridge.ConfigContainer(
"""
FOOT = """    )


if __name__ == "__main__":
    pretrain(config=pretrain_config(), forward_step_func=forward_step)
"""


def _unsaid(recipe: Recipe, m: Features) -> Iterator[UnsaidKey]:
    yield from unmet(NEEDS, m, AS_IS)
    yield from unsaid_by_all(recipe, SAYS, SCHEDULES, frozenset({"bfloat16"}))
    yield from _unsaid_training(recipe, m)
    yield from _unsaid_layout(recipe)


def _unsaid_training(recipe: Recipe, m: Features) -> Iterator[UnsaidKey]:
    adam, rates, length = recipe.optimizer, recipe.schedule, recipe.budget.sequence_length
    plain = kind_of(rates["_target_"]) in SCHEDULES
    spares = adam.get("decay") == "matrices" or not adam["weight_decay"]
    alike = recipe.precision.reduce == recipe.precision.accumulate
    known = recipe.precision.reduce in {"float32", "bfloat16"}
    both = "set precision.reduce=float32 precision.accumulate=float32"
    scaled = m.initialization["residual"] == "scaled"
    row, first = m.initialization.get("padding_row"), "model.initialization"
    masked, given = recipe.data.document_mask, recipe.data.mixture == "given"
    yield from unsaid([
        ("optimizer.decay", spares, "it spares norms and biases alone", "=matrices"),
        ("schedule.start", not plain or rates["start"] == 1, "its peak is the rate", "=1.0"),
        ("precision.reduce", alike and known, "one dtype for both, of two", both),
        (f"{first}.residual", scaled, "it scales maps onto the residual stream", "=scaled"),
        (f"{first}.padding_row", row is None, "no row begins at 0", "=null"),
        ("data.document_mask", not masked, "its kernels see the whole sample", "=false"),
        ("data.mixture", given, "it has weights", "=given"),
        ("data.phases", not recipe.data.phases, "its blend stays", "={}"),
    ])
    for part in ("total", "warmup", "decay", "planned"):
        key, tokens = f"schedule.{part}_tokens", rates.get(f"{part}_tokens") or 0
        near = f"={max(1, round(tokens / length)) * length}"
        yield from unsaid([(key, tokens % length == 0, "it counts whole samples", near)])


def _unsaid_layout(recipe: Recipe) -> Iterator[UnsaidKey]:
    p = recipe.parallelism
    all_ranks = p.zero == 0 or p.data_shard == p.data
    known = p.schedule == ("interleaved" if p.stages_per_rank > 1 else "1f1b")
    way = "=interleaved" if p.stages_per_rank > 1 else "=1f1b"
    whole = p.recompute in {"none", "full"}
    each = p.recompute == "none" or p.recompute_every == 1
    yield from unsaid([
        ("parallelism.zero", p.zero < 2, "it shards the optimizer alone", "=1"),
        ("parallelism.expert", p.expert == 1, "its layers have none", "=1"),
        ("parallelism.data_shard", all_ranks, "it shards over all of them", "=auto"),
        ("parallelism.schedule", known, "stages in turns are interleaved, others not", way),
        ("parallelism.recompute", whole, "it recomputes whole layers", "=full"),
        ("parallelism.recompute_every", each, "it recomputes all layers", "=1"),
        ("parallelism.compile", p.compile == "none", "it has kernels of its own", "=none"),
    ])
