"""Compiled layers: the same losses and gradients, one compilation for all layers."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from components.config.model_spec.positions import AlibiSpec, InterleavedRotarySpec, RotarySpec
from components.distributed.activation_checkpoint import checkpoint_activations
from components.distributed.compile import compile_layers
from components.errors import RecipeError
from components.model import attention_kernels
from components.model.attention import AttentionContext
from components.model.decoder import Decoder
from components.model.moe import expert_layers
from components.model.positions import PositionEncoding
from components.torch_internals.operators import count_graphs
from components.versions import release_of
from tests.components.model.comparison import gradient_of, randomized
from tests.components.model.flex_on_cpu import flex_on_cpu
from tests.components.model.routing_terms import auxiliary_terms
from tests.components.model.specs import RMS_NORM, experts_spec, mlp_spec, small_decoder

# Torch's compiler warns about its own imports and internals, which is visible only with
# warnings as errors.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the compiler, see above
    pytest.mark.usefixtures("_forget_what_was_compiled"),
]

FEW_EXPERTS = experts_spec(ffn_dim=24, auxiliary_loss=0.01, path="grouped")
CLAMPED = mlp_spec(77, bias=True, swiglu_limit=0.5, linear_offset=1.0)
SOME_ROTATE = InterleavedRotarySpec(base=10_000.0, skip_every=4)
TURNED = RotarySpec(base=10_000.0, local_base=100.0)
SHARED = FEW_EXPERTS.model_copy(update={"shared_ffn_dim": 6, "shared_gate": True})


def compare(plain: Decoder, model: Decoder, tokens: Tensor) -> None:
    """Compare losses and gradients, up to another order of sums."""
    if release_of(torch.__version__) < (2, 13):
        pytest.skip("torch 2.10 and 2.11 compile attention in float64 for a CPU wrongly")
    losses = []
    for decoder in (plain, model):
        torch.manual_seed(5)
        loss = decoder.compute_loss(tokens, tokens)
        penalty, _ = auxiliary_terms(decoder)
        loss = loss + penalty
        torch.autograd.backward(loss)
        losses.append(loss.detach())
        assert all(layer.take_routing() is None for layer in expert_layers(decoder))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=0.0)
    theirs = dict(plain.named_parameters())
    assert list(theirs) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        expected = gradient_of(theirs[name])
        torch.testing.assert_close(
            gradient_of(parameter),
            expected,
            rtol=1e-9,
            atol=1e-12 * expected.abs().max().item(),
        )


def count_compiled(recompute: Any, **parts: Any) -> int:
    """Compare a compiled decoder with the plain one; return the number of graphs."""
    plain = randomized(small_decoder(**parts)).double()
    model = copy.deepcopy(plain)
    checkpoint_activations(model, recompute, compiled=True)
    compile_layers(model, "layers", recompute=recompute)
    before = count_graphs()
    compare(plain, model, torch.randint(61, (2, 19)))
    return count_graphs() - before


@pytest.mark.long
@pytest.mark.parametrize(
    "recompute",
    [
        "none",
        "selective",
        "full",
        ["mlp"],
        ["attention", "norms"],
        ["norms", "attention", "mlp"],
    ],
)
def test_compiled_layers_equal_plain_ones_with_dropout_and_recomputation(recompute):
    assert count_compiled(recompute, dropout=0.2, attention_dropout=0.2) > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "part",
    [
        {"positions": AlibiSpec()},
        {"mlp": FEW_EXPERTS},
        {"qk_norm": RMS_NORM, "qk_norm_over": "each_head"},
        {"mlp": mlp_spec(77, "xielu")},
        {"mlp": SHARED},
        {"output_gate": True},
        {"sinks": True},
        {"mlp": CLAMPED},
    ],
)
def test_other_parts_compile(part: dict[str, object]) -> None:
    assert count_compiled("none", **part) > 0


@pytest.mark.long
def test_all_layers_share_one_graph_and_evaluation_adds_none() -> None:
    plain = small_decoder(num_layers=12)  # more than torch's limit of graphs
    model = copy.deepcopy(plain)
    compile_layers(model, "layers", recompute="none")
    counts = [count_graphs()]
    with torch.no_grad():
        for length in range(2, 14):
            tokens = torch.randint(61, (1 + length % 3, length))
            assert torch.equal(model.eval()(tokens), plain.eval()(tokens))
    counts.append(count_graphs())
    for _ in range(2):
        loss = model.train().compute_loss(tokens, tokens)
        torch.autograd.backward(loss)
        counts.append(count_graphs())
    assert [count - counts[0] for count in counts] == [0, 0, 1, 1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("graphs", "settings"),
    [
        (2, {"positions": SOME_ROTATE, "norm_placement": "after"}),
        (3, {"positions": TURNED, "windows": [5, 7, "full"], "norm_placement": "both"}),
    ],
    ids=["some rotate", "windows"],
)
def test_layers_of_each_kind_share_a_graph(graphs: int, settings: dict[str, Any]) -> None:
    assert count_compiled("selective", num_layers=12, scale_dim=14, **settings) == graphs


@pytest.mark.long
def test_too_many_shapes_are_refused_with_a_remedy() -> None:
    model = small_decoder()
    compile_layers(model, "layers", recompute="none")
    with torch._dynamo.config.patch(recompile_limit=1):
        model(torch.randint(61, (1, 7)))
        with pytest.raises(RecipeError, match="has made 1 graphs of one function") as caught:
            model(torch.randint(61, (1, 8)))
    assert caught.value.path == "parallelism.compile"
    assert "parallelism.compile=none" in caught.value.remedy


@pytest.mark.long
def test_flex_attention_to_texts_of_any_length_takes_four_graphs_at_most() -> None:
    # Inductor's CPU kernel does not build with changing shapes; dynamo's graphs are the same as
    # on a GPU.
    attend = torch.compile(attention_kernels.flex_of_any, dynamic=True, backend="aot_eager")
    graphs = 0
    for length in (64, 65, 100, 33, 129, 70, 256, 17, 300):
        for batch in (1, 2, 3):
            places = PositionEncoding(position_ids=torch.arange(length), slopes=torch.rand(4))
            documents = torch.randint(3, (batch, length)).sort(dim=1).values
            scope = AttentionContext(encoding=places, documents=documents)
            heads = torch.randn(batch, 4, length, 16)
            change, blocks = scope.score_change((0, 4)), scope.mask.build_block_mask(length)
            given = (heads, heads, heads, change, blocks)
            before = count_graphs()
            with torch.no_grad():
                mixed = attend(*given)
                graphs += count_graphs() - before
                torch.testing.assert_close(mixed, attention_kernels.flex_once(*given))
    assert 0 < graphs <= 4


@pytest.mark.quick("0.25-False")
@pytest.mark.parametrize(("dropout", "sinks"), [(0.0, False), (0.25, False), (0.0, True)])
def test_layers_of_flex_attention_share_a_graph_for_all_microbatches(dropout, sinks):
    """The mask of a microbatch is built before the first layer, outside of the graphs."""
    settings = {"positions": AlibiSpec(), "num_layers": 3, "attention_dropout": dropout}
    settings |= {"sinks": sinks}
    plain = randomized(small_decoder(**settings))
    model = copy.deepcopy(plain)
    for layer in model.layers.values():
        layer.forward = torch.compile(
            layer.forward, dynamic=False, fullgraph=True, backend="aot_eager"
        )
    tokens, counts = torch.randint(61, (2, 40)), []
    with flex_on_cpu(), torch.no_grad():
        for seed in range(3):
            documents = torch.randint(3, (2, 40)).sort(dim=1).values
            found = []
            for each in (plain, model):
                before = count_graphs()
                torch.manual_seed(seed)
                found.append(each(tokens, documents=documents))
                counts.append(count_graphs() - before)
            torch.testing.assert_close(*found)
    assert counts[1::2] == [1, 0, 0]


def test_float64_is_refused_where_torch_cannot_compile_it(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    compile_layers(small_decoder(), "layers", recompute="none")
    with pytest.raises(RecipeError, match=r"torch 2\.11\.0\+cu130 cannot compile in float64"):
        compile_layers(small_decoder().double(), "layers", recompute="none")


def test_without_compilation_layers_are_unchanged() -> None:
    model = small_decoder()
    compile_layers(model, "none", recompute="none")
    assert all("forward" not in vars(layer) for layer in model.layers.values())


def test_a_missing_compiler_is_reported_before_training(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RecipeError, match="has no no-such-compiler") as caught:
        compile_layers(small_decoder(), "layers", recompute="none")
    assert "parallelism.compile=none" in caught.value.remedy
