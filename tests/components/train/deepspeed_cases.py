"""Ranks that take the same steps with DeepSpeed's engine and with ours."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor
from torch.nn import functional as F

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.build import build_node
from components.checkpoint.layout import read_pieces
from components.checkpoint.metadata import RunProgress
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.distributed.data import DataParallel
from components.distributed.devices import StateDtypes
from components.distributed.mesh import Mesh, sum_over_ranks
from components.distributed.pipeline import Compute, GradientAccumulation, StageOutput
from components.engine.deepspeed_engine import DeepSpeedEngine
from components.engine.mesh_engine import Engine, MeshEngine
from components.engine.parallelize import build_rank_model
from components.errors import RecipeError
from components.model.decoder import Decoder
from components.optim.loss_scale import LossScale
from tests.components.checkpoint.saving_cases import load_checkpoint, save_checkpoint
from tests.components.distributed.layout_cases import Layout, layout_mesh

# 31: ZeRO 3 cannot divide a norm's weights evenly, whatever the number of ranks.
TINY = (
    *("recipe=teuken7b", "scale=parity", "model.dim=31", "model.num_layers=2"),
    *("model.attention.head_dim=8", "model.attention.num_heads=4"),
    *("model.attention.num_kv_heads=2", "model.mlp.ffn_dim=48", "tokenizer.vocab_size=61"),
    *("model.vocab_size=61", "model.padded_vocab_size=64", "parallelism.data=2"),
    *("parallelism.pipeline=1", "parallelism.tensor=1", "parallelism.data_shard=2"),
    "parallelism.sequence_parallel=false",
    "optimizer.eps=1.0e-3",  # so that no update hangs on the rounding of a tiny gradient
)
LENGTH = 16
Words = tuple[str, ...]


class Step(NamedTuple):
    """What the loop asks for: microbatches as in a ramp-up, a rate, a delayed limit."""

    microbatches: int
    lr: float
    norm_limit: float


STEPS = (Step(1, 0.01, torch.inf), Step(3, 0.02, 0.3), Step(2, 0.005, 0.2))


@cache
def composed(*choices: str) -> Recipe:
    """Compose once, in float32: it takes longer than a case does."""
    dtypes = [f"precision.{key}=float32" for key in ("compute", "accumulate", "reduce")]
    return compose_recipe(read_point([*TINY, *dtypes, *choices]))


def recipe_of(engine: str, words: Words) -> Recipe:
    """Change what the words say; our engine offloads nothing."""
    choices = [word for word in words if word.startswith("optimizer=")]
    tree = composed(*choices).model_dump(mode="json")
    settings = [word for word in words if word not in choices]
    for word in (f"parallelism.engine={engine}", *settings):
        key, _, value = word.partition("=")
        section, _, name = key.partition(".")
        if engine == "deepspeed" or name != "offload_optimizer":
            tree[section][name] = yaml.safe_load(value)
    return check_recipe(tree)


def compute_in(dtype: torch.dtype) -> Compute:
    def compute(
        decoder: Decoder, inputs: StageOutput, rows: Tensor, number: int
    ) -> StageOutput:
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=False)
            if (dtype == torch.float32)
            else torch.autocast("cpu", dtype)
        ):
            loss: Tensor = decoder(inputs[0], targets=rows[:, 1:])
        return (loss,)

    return compute


def engine_of(name: str, *words: str) -> Engine:
    """Make an engine as `Pretraining` does."""
    recipe, mesh = recipe_of(name, words), layout_mesh(Layout(shard=2))
    cpu = torch.device("cpu")
    (decoder,) = build_rank_model(recipe, mesh, device=cpu).stages
    make = build_node(recipe.optimizer, "optimizer")
    dtype = getattr(torch, recipe.precision.compute)
    if name == "mesh":
        return _mesh_engine(recipe, mesh, decoder, make, dtype)
    return DeepSpeedEngine(
        recipe=recipe, decoder=decoder, compute=compute_in(dtype), device=cpu
    )


def _mesh_engine(
    recipe: Recipe, mesh: Mesh, decoder: Decoder, make: Any, dtype: torch.dtype
) -> MeshEngine:
    parallel = DataParallel(
        [decoder],
        mesh,
        zero=recipe.parallelism.zero,
        dtypes=StateDtypes.from_precision(recipe.precision, torch.device("cpu")),
        bucket_elements=recipe.parallelism.bucket_elements,
        overlap=recipe.parallelism.overlap,
    )
    scaling = recipe.precision.loss_scale
    return MeshEngine(
        mesh=mesh,
        data_parallel=parallel,
        microbatches=GradientAccumulation(decoder, compute_in(dtype)),
        optimizer=make(parameters=[(one.name, one.parameter) for one in parallel.shards]),
        loss_scale=None if isinstance(scaling, str) else LossScale(**scaling.model_dump()),
    )


def batch_of(step: int, microbatches: int) -> Tensor:
    """Draw this rank's (microbatches, sequences, length + 1) of a step."""
    rank = torch.distributed.get_rank()
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(61, (microbatches, 2, LENGTH + 1), generator=generator)


def take_one(engine: Engine, number: int, step: Step) -> float:
    def accept_step(squares: Tensor | None) -> Tensor:
        """Let every step be taken."""
        share = torch.zeros((), dtype=torch.float64) if squares is None else squares
        return sum_over_ranks(share.clone()).sqrt()

    batch = batch_of(number, step.microbatches)
    norm = engine.step(batch, lr=step.lr, norm_limit=step.norm_limit, accept_step=accept_step)
    assert norm is not None
    return norm.item()


def take(engine: Engine, steps: Iterator[tuple[int, Step]]) -> list[float]:
    """Take steps and return their norms."""
    return [take_one(engine, n, s) for n, s in steps]


class LeftOut(NamedTuple):
    """What a step that must not be taken changed: at once, in the scale, and a step later."""

    at_once: float
    same_scale: bool
    later: float


def leave_out(*words: str) -> LeftOut:
    """Offer a step between two others and refuse it.

    Beside it stands an engine that never saw the step.
    """
    if "precision.compute=float16" in words:
        trust_float16()
    met, spared = engine_of("deepspeed", *words), engine_of("deepspeed", *words)
    for engine in (met, spared):
        take_one(engine, 0, STEPS[0])
    scaling = met.scale_state()
    batch = batch_of(1, 2)
    refused = met.step(batch, lr=0.02, norm_limit=0.3, accept_step=lambda squares: None)
    assert refused is None
    at_once, same_scale = apart(met, spared), met.scale_state() == scaling
    for engine in (met, spared):
        take_one(engine, 2, STEPS[1])
    return LeftOut(at_once, same_scale, apart(met, spared))


def apart(one: Engine, other: Engine) -> float:
    """Return the largest difference of weights, relative to a weight's largest number."""
    pairs = zip(one.iterate_weights(), other.iterate_weights(), strict=True)
    found = []
    for (name, mine), (other_name, theirs) in pairs:
        assert name == other_name
        theirs = theirs.to(mine.dtype)  # ours are as rounded as they are computed with
        found.append(((mine - theirs).abs().max() / theirs.abs().max()).item())
    return max(found)


class Apart(NamedTuple):
    """How far two engines are apart, relative to a number or to a tensor's largest one."""

    at_start: float
    loss_before: float
    norm: float
    gradient: float
    weight: float
    loss_after: float


def train(*words: str) -> Apart:
    """Take the same steps with both engines, evaluate before and after."""
    same = [word for word in words if word.startswith("optimizer")]
    ours, theirs = engine_of("mesh", *same), engine_of("deepspeed", *words)
    at_start, before = apart(theirs, ours), losses_apart(theirs, ours)
    gradients = [keep_gradients(engine) for engine in (ours, theirs)]
    norms = [take(engine, enumerate(STEPS)) for engine in (ours, theirs)]
    mine, other = gradients
    assert mine.keys() == other.keys()
    differences = [(mine[n] - other[n]).abs().max() / mine[n].abs().max() for n in mine]
    return Apart(
        at_start=at_start,
        loss_before=before,
        norm=max(abs(a - b) / a for a, b in zip(*norms, strict=True)),
        gradient=float(max(differences)),
        weight=apart(theirs, ours),
        loss_after=losses_apart(theirs, ours),
    )


def keep_gradients(engine: Engine) -> dict[str, Tensor]:
    """Return what will hold the gradients of the last step."""
    kept: dict[str, Tensor] = {}

    def keep() -> None:
        kept.update({name: gradient.clone() for name, gradient in engine.iterate_gradients()})

    engine.on_gradients = keep
    return kept


def losses_apart(one: Engine, other: Engine) -> float:
    rows = batch_of(9, 1)[0]
    with torch.no_grad():
        mine, theirs = one.evaluate_rows(rows), other.evaluate_rows(rows)
    assert mine is not None
    assert theirs is not None
    return abs(mine.item() - theirs.item()) / theirs.item()


class Changed(NamedTuple):
    """What differs when an engine goes on from another's files, at once and a step later."""

    at_once: float
    norm: float
    weight: float
    same_names: bool


def change(folder: Path, first: Words, second: Words) -> list[Changed]:
    """Save with the first engine and go on with the second, then the other way round."""
    engines = [engine_of(*first), engine_of(*second)]
    take(engines[0], enumerate(STEPS))
    same = [word for word in first if word.startswith("optimizer")]
    ours = save_checkpoint(folder / "ours", engine_of("mesh", *same).state, RunProgress(0, 0))
    found = []
    for number, (before, after) in enumerate([engines, engines[::-1]]):
        saved = save_checkpoint(folder / str(number), before.state, RunProgress(3, 30))
        if number:  # there must be something to forget
            take(after, iter([(7, Step(1, 0.05, 1.0))]))
        load_checkpoint(saved, after.state)
        at_once = apart(after, before)
        norms = [take(engine, iter([(3, Step(2, 0.01, 0.3))]))[0] for engine in engines]
        found.append(
            Changed(
                at_once=at_once,
                norm=abs(norms[0] - norms[1]) / norms[0],
                weight=apart(after, before),
                same_names=names_in(saved) == names_in(ours),
            )
        )
    return found


def names_in(saved: Path) -> set[str]:
    """Name every tensor in a checkpoint's files."""
    files = [file.name for file in saved.glob("*.safetensors")]
    return {piece.name for piece in read_pieces(saved, files)}


def trust_float16() -> None:
    """Let DeepSpeed use what torch computes on any CPU, if slowly."""
    import deepspeed

    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True


def refuse_float16(*words: str) -> str:
    """Return what is said where DeepSpeed does not trust the device."""
    import deepspeed

    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: False
    try:
        engine_of("deepspeed", *words)
    except RecipeError as error:
        return str(error)
    return ""


class Scaled(NamedTuple):
    """What a step did to the loss scale, and what our rule makes of the same overflows."""

    state: dict[str, Any]
    replayed: dict[str, Any]
    skipped: bool


def scale(*words: str) -> list[Scaled]:
    """Take steps in float16, some of which overflow, and replay our rule beside them."""
    trust_float16()
    engine = engine_of("deepspeed", *words)
    scaling = recipe_of("deepspeed", words).precision.loss_scale
    assert not isinstance(scaling, str)
    rule, found = LossScale(**scaling.model_dump()), []
    for number in range(16):
        before = {name: weight.clone() for name, weight in engine.iterate_weights()}
        take(engine, iter([(number, Step(2, 0.01, 1.0))]))
        skipped = all(torch.equal(before[name], now) for name, now in engine.iterate_weights())
        rule.update_scale(overflow=skipped)
        state, replayed = engine.scale_state(), rule.state_dict()
        assert state is not None
        found.append(Scaled(dict(state), dict(replayed), skipped))
    engine.load_scale_state({"scale": 8.0, "hysteresis_left": 2, "good_steps": 5})
    assert engine.backward_scale == 8
    assert engine.scale_state() == {"scale": 8.0, "hysteresis_left": 2, "good_steps": 5}
    return found


def losses_in(*words: str) -> tuple[float, list[float], list[float]]:
    """Return how far weights start apart, and the losses of one batch while it is learnt."""
    engines = engine_of("mesh", *words), engine_of("deepspeed", *words)
    at_start, found = apart(*engines), []
    for engine in engines:
        losses = []
        for _ in range(8):
            with torch.no_grad():
                loss = engine.evaluate_rows(batch_of(0, 1)[0])
            assert loss is not None
            losses.append(loss.item())
            take(engine, iter([(0, Step(1, 0.01, 1.0))]))
        found.append(losses)
    return at_start, found[0], found[1]


def leaves_torch_alone() -> bool:
    """Whether torch's own functions are what they were once an engine was made."""
    before = F.linear, torch.empty, torch.nn.Module.__init__
    engine_of("deepspeed", "parallelism.zero=3")
    return before == (F.linear, torch.empty, torch.nn.Module.__init__)
