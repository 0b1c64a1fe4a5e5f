"""What other trainers leave unsaid, and which keys of a recipe are read by whom.

Every key of a recipe is said by an engine, checked (a value that it cannot say is refused),
or no part of what is trained. A key that is none of these is refused, too: it is newer than
the engine's page, and would be dropped in silence.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from command.actions.emit import UnsaidKey
from components.config.schema.recipe import Recipe
from components.config.user_overrides import leaves
from components.convert.family import HFFamily, Need
from components.convert.features import Features

Row = tuple[str, bool, str, str]


# What a run is called, where it runs, how it is watched; how its data were made; and how the
# same numbers are held and sent, which each trainer does in its own way.
OWN = frozenset({
    *("name", "why", "home", "works", "published", "assumed", "scale", "cluster"),
    *("evaluation", "guard", "watchdog", "profiler", "tracking", "tokenizer"),
    *("checkpoint.keep", "checkpoint.keep_every_tokens", "checkpoint.keep_best"),
    *("checkpoint.weights_every_tokens", "checkpoint.copy_to", "checkpoint.asynchronous"),
    *("checkpoint.files", "checkpoint.retry_seconds", "checkpoint.local"),
    *("data.sources", "data.preparation", "data.folder", "data.held_out_fraction"),
    *("data.surplus", "data.tokenizer_sample_bytes", "data.verify", "data.write_megatron"),
    *("model.attention.backends", "model.mlp.path", "model.attention.layer_scaling"),
    *("parallelism.bucket_elements", "parallelism.overlap", "parallelism.rank_order"),
    *("parallelism.expert_aware", "parallelism.expert_bound", "parallelism.expert_dispatch"),
    *("parallelism.expert_overlap", "precision.weights"),
})
# Keys that `unsaid_by_all` and `unsaid_parts` look at; ``_target_`` names a class by its part.
CHECKED = frozenset({
    *("optimizer._target_", "optimizer.decay_order", "optimizer.clip_after_tokens"),
    *("schedule._target_", "schedule.phases", "schedule.planned_tokens"),
    *("schedule.skipped_tokens", "schedule.decay_shape", "budget.ramp_up", "phases", "from"),
    *("precision.compute", "precision.master", "precision.reduce", "precision.accumulate"),
    *("precision.loss_scale", "data.goldfish", "data.loss_after_eod", "data.packing"),
    *("data.skip", "model.init_from", "model.dropout", "model.attention.dropout"),
    *("model.initialization.padding_row", "parallelism.engine"),
    *("parallelism.offload_optimizer", "parallelism.zero", "parallelism.data_shard"),
    *("model._target_", "model.attention._target_", "model.attention.head_dim"),
    *("model.attention.bias", "model.attention.qk_norm", "model.attention.windows"),
    *("model.embedding_norm", "model.initialization._target_", "model.logit_cap"),
    *("model.mlp._target_", "model.mlp.activation", "model.mlp.bias", "model.mlp.gated"),
    *("model.mlp.num_experts", "model.norm._target_", "model.norm.bias"),
    *("model.norm.center", "model.norm.weight", "model.norm_placement"),
    *("model.positions._target_", "model.positions.scaling", "model.mtp"),
    *("model.embedding_scale", "model.attention.scale_dim", "model.z_loss"),
    *("model.initialization.cutoff", "model.initialization.embedding_std"),
    *("model.initialization.head_std", "model.parametrization"),
})
# What belongs to a part of another kind: whoever refuses the part refuses these.
_PARTS = frozenset({
    *("model.mlp.auxiliary_loss", "model.mlp.auxiliary_scope", "model.mlp.renormalize"),
    *("model.mlp.routing", "model.mlp.top_k", "model.mlp.z_loss", "model.positions.skip_every"),
    *("model.positions.num_positions", "model.attention.qk_norm_over", "optimizer.alpha"),
    *("optimizer.alpha_warmup_tokens", "optimizer.beta3", "optimizer.beta3_warmup_tokens"),
    *("schedule.value", "parallelism.expert", "parallelism.expert_divisor"),
    *("optimizer.update_scale", "optimizer.embedding_lr_factor", "optimizer.head_lr_factor"),
    *("optimizer.momentum", "optimizer.momentum_start", "optimizer.momentum_warmup_tokens"),
    *("optimizer.nesterov", "optimizer.newton_schulz_steps", "optimizer.matrix_lr_factor"),
})
# What every engine says, or refuses by a check of its own, or names in a note.
SAID = frozenset({
    *("model.dim", "model.num_layers", "model.padded_vocab_size", "model.tied_embeddings"),
    *("model.attention.num_heads", "model.attention.num_kv_heads", "model.mlp.ffn_dim"),
    *("model.norm.eps", "model.positions.base", "model.initialization.std"),
    *("model.initialization.residual", "optimizer.lr", "optimizer.beta1", "optimizer.beta2"),
    *("optimizer.eps", "optimizer.weight_decay", "optimizer.decay", "optimizer.clip_norm"),
    *("schedule.total_tokens", "schedule.warmup_tokens", "schedule.warmup_from"),
    *("schedule.start", "schedule.end", "schedule.decay_tokens", "checkpoint.every_tokens"),
    *("budget.total_tokens", "budget.global_batch_tokens", "budget.sequence_length"),
    *("budget.seed", "data.document_mask", "data.tokenizer_folder", "parallelism.data"),
    *("parallelism.tensor", "parallelism.pipeline", "parallelism.context"),
    *("parallelism.sequence_parallel", "parallelism.microbatch_sequences"),
    *("parallelism.recompute", "parallelism.recompute_every", "parallelism.schedule"),
    *("parallelism.stages_per_rank", "parallelism.stage_balance", "parallelism.compile"),
    *("parallelism.gc_every_steps", "data.shares", "data.phases", "data.mixture"),
    "model.vocab_size",
})


def unread_keys(tree: Mapping[str, Any], said: frozenset[str]) -> Iterator[str]:
    """List the recipe's keys that are neither said nor checked nor a trainer's own."""
    known = OWN | CHECKED | _PARTS | SAID | said
    for path, _ in leaves(tree):
        steps = path.split(".")
        above = {".".join(steps[: end + 1]) for end in range(len(steps))}
        if not above & known and steps[-1] != "_partial_":
            yield path


def unsaid(rows: Iterable[Row], says: frozenset[str] = frozenset()) -> Iterator[UnsaidKey]:
    """Take the rows that do not hold, but for keys that the engine itself says.

    A row is a key, whether it is as the engine has it, what that is, and the way out: with an
    equals sign in front a value of the key.
    """
    for key, holds, problem, way in rows:
        if not holds and key not in says:
            remedy = f"set {key}{way}" if way.startswith("=") else way
            yield UnsaidKey(key, problem, remedy)


def unsaid_by_all(
    recipe: Recipe, said: frozenset[str], schedules: Iterable[str], dtypes: frozenset[str]
) -> Iterator[UnsaidKey]:
    """List what no engine says unless it is ``said``: training, targets, changes on the way."""
    for path in unread_keys(recipe.model_dump(mode="json"), said):
        yield UnsaidKey(path, "it is newer than what emit knows", "leave it out")
    yield from _parts(recipe)
    yield from unsaid(_training(recipe, frozenset(schedules), dtypes), said)
    yield from unsaid(_targets(recipe), said)


_ONE = "all maps begin with one deviation"
# The class of each part whose keys are compared one by one.
_KINDS = {
    "": {"Decoder"},
    "attention.": {"Attention", "LatentAttention"},
    "mlp.": {"MLP", "Experts"},
    "norm.": {"Norm"},
    "attention.qk_norm.": {"Norm"},
    "initialization.": {"Normal"},
}


def _parts(recipe: Recipe) -> Iterator[UnsaidKey]:
    found = dict(leaves({"model": recipe.model}))
    for part, kinds in _KINDS.items():
        key = f"model.{part}_target_"
        kind = kind_of(found.get(key, min(kinds)))
        if kind not in kinds:
            yield UnsaidKey(key, f"{kind} is not known", "this part can only be trained here")


def _training(recipe: Recipe, schedules: frozenset[str], dtypes: frozenset[str]) -> list[Row]:
    adam, rates, precision = recipe.optimizer, recipe.schedule, recipe.precision
    kind, wave = kind_of(adam["_target_"]), kind_of(rates["_target_"])
    decays_first = adam.get("decay_order") != "after"
    clips = not adam.get("clip_after_tokens")
    shape = rates.get("decay_shape", "linear") != "exponential"
    summed = precision.reduce == precision.accumulate == "float32"
    sums = "set precision.reduce=float32 precision.accumulate=float32"
    master = precision.master in {"auto", "float32"}
    has = " and ".join(sorted(dtypes))
    constant = isinstance(recipe.budget.ramp_up, str)
    fresh = recipe.model["init_from"] == "none"
    first = recipe.model["initialization"]
    whole = first.get("cutoff") is None
    return [
        ("optimizer", kind == "AdamW", f"it has AdamW, not {kind}", "=adamw"),
        ("optimizer.decay_order", decays_first, "it decays before the update", "=before"),
        ("optimizer.clip_after_tokens", clips, "it clips from the first step on", "=0"),
        ("schedule", wave in schedules, f"{wave} is not written", "=cosine"),
        ("schedule.decay_shape", shape, "it is not written", "=linear"),
        ("budget.ramp_up", constant, "its batch is constant", "=none"),
        (
            "precision.compute",
            precision.compute in dtypes,
            f"it has {has}, not {precision.compute}",
            "=bfloat16",
        ),
        ("model.initialization.cutoff", whole, "it draws from a whole normal", "=null"),
        *(
            (
                f"model.initialization.{key}",
                first.get(key) in {None, first["std"]},
                _ONE,
                "=null",
            )
            for key in ("embedding_std", "head_std")
        ),
        ("model.initialization.std", first["std"] != "fan_in", _ONE, "=0.02"),
        ("model.initialization.residual", first["residual"] != "zero", "none is 0", "=plain"),
        ("precision.reduce", summed, "it adds gradients in float32", sums),
        ("precision.master", master, "it updates weights in float32", "=auto"),
        (
            "model.init_from",
            fresh,
            "weights to begin with are not written",
            "=none, and name them there by hand",
        ),
    ]


def _targets(recipe: Recipe) -> list[Row]:
    """Say which tokens a step predicts, and how the run changes on its way."""
    data, rates, degrees = recipe.data, recipe.schedule, recipe.parallelism
    joined, on_device = data.packing == "concatenate", not degrees.offload_optimizer
    return [
        ("data.goldfish", data.goldfish == "none", "all targets count", "=none"),
        ("data.loss_after_eod", data.loss_after_eod, "all targets count", "=true"),
        ("data.packing", joined, "it cuts one long text", "=concatenate"),
        ("data.skip", not data.skip, "it leaves no sample out", "=[]"),
        ("schedule.planned_tokens", not rates.get("planned_tokens"), "not written", "=null"),
        ("schedule.skipped_tokens", not rates.get("skipped_tokens"), "not written", "=0"),
        ("model.z_loss", not recipe.model.get("z_loss"), "it has cross-entropy alone", "=0.0"),
        ("model.mtp", recipe.model.get("mtp") is None, "it predicts the next token", "=null"),
        (
            "model.parametrization",
            recipe.model.get("parametrization") is None,
            "all widths have one rate",
            "=null",
        ),
        ("phases", not recipe.phases, "a run is the same from its begin to its end", "={}"),
        (
            "from",
            recipe.parent is None,
            "it begins with first weights, not with another run's",
            "export the parent, and name its weights there by hand",
        ),
        ("parallelism.engine", degrees.engine == "mesh", "it is an engine itself", "=mesh"),
        ("parallelism.offload_optimizer", on_device, "it offloads weights, too", "=false"),
    ]


def unsaid_parts(m: Features, as_is: str) -> Iterator[UnsaidKey]:
    """List what a decoder lacks whose maps have no bias, whose heads divide the width."""
    heads = m.attention.num_heads * m.attention.head_dim == m.dim
    divided = "set model.attention.head_dim to model.dim / num_heads"
    return unsaid([
        ("model.attention.bias", not m.attention.bias, "its maps have none", as_is),
        ("model.mlp.bias", not m.mlp.bias, "its maps have none", as_is),
        ("model.mlp.activation", m.mlp.activation == "silu", "it has silu", as_is),
        ("model.attention.head_dim", heads, "its heads divide the width", divided),
    ])


def unsaid_noise(m: Features) -> Iterator[UnsaidKey]:
    """List what is never said of first weights and of dropout."""
    first, row = "model.initialization.padding_row", m.initialization.get("padding_row")
    return unsaid([
        (first, row is None, "no row begins at 0", "=null"),
        ("model.dropout", not m.dropout, "it has none", "=0.0"),
        ("model.attention.dropout", not m.attention.dropout, "it has none", "=0.0"),
    ])


def unmet(needs: Iterable[Need], m: Features, as_is: str) -> Iterator[UnsaidKey]:
    """List the features that a decoder always has and the model does not."""
    for need in (*needs, *HFFamily.usual):
        if not need.is_met(m):
            yield UnsaidKey(f"model.{need.key}", need.has.format(norm=m.norm), as_is)


def kind_of(target: str) -> str:
    """Return the class that a ``_target_`` names."""
    return target.rpartition(".")[2]


def tokenizer_path(recipe: Recipe) -> str:
    """Return where the emitted files look for the tokenizer."""
    folder = recipe.data.tokenizer_folder
    return "tokenizer" if folder == "none" else str(Path(folder).resolve())
