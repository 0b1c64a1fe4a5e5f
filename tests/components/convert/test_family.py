"""The class is chosen by features. An error names the feature that no class has."""

from typing import Any

import pytest

from components.config.part_nodes import read_decoder
from components.convert.family import FAMILIES, choose_family
from components.errors import RecipeError
from tests.components.convert.base_section import RMS, ROTARY, Section, part
from tests.components.convert.conftest import SECTIONS, llama, olmoe

MUP = part("parametrization.MuP", base_dim=8)
DEEPER = {"_target_": "components.model.parametrization.CompleteP", "base_layers": 1}


@pytest.mark.parametrize("name", SECTIONS)
def test_each_section_has_its_class(name: str) -> None:
    family = choose_family(read_decoder(SECTIONS[name]()))
    kinds = {each.model_type.removesuffix("_text"): each for each in FAMILIES}
    assert family is kinds[max(filter(name.startswith, kinds), key=len)]


def test_a_parametrization_without_factors_keeps_the_class() -> None:
    base = MUP | {"base_dim": llama()["dim"]}
    unscaled = read_decoder(llama() | {"parametrization": base})
    assert choose_family(unscaled) is choose_family(read_decoder(llama()))
    for more in ({"output_multiplier": 2.0}, {"embedding_multiplier": 2.0}, DEEPER):
        scaled = read_decoder(llama() | {"parametrization": base | more})
        assert not scaled.is_unscaled, more


def changed(name: str, path: str, value: Any) -> Section:
    """Change a section at a path; ``mixer`` is its only mixer."""
    section, (*parts, key) = SECTIONS[name](), path.split(".")
    if parts == ["mixer"]:
        ((kind, mixer),) = section["mixers"].items()
        return section | {"mixers": {kind: mixer | {key: value}}}
    inner = {parts[0]: section[parts[0]] | {key: value}} if parts else {key: value}
    return section | inner


def assert_refused(section: Section, path: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words) as caught:
        choose_family(read_decoder(section))
    assert caught.value.path == f"model.{path}"


@pytest.mark.parametrize(
    ("name", "path", "value", "words"),
    [
        ("llama", "embedding_norm", RMS, "LlamaForCausalLM"),
        ("llama", "attention.qk_norm", RMS, "Llama"),
        ("bloom", "embedding_norm", None, "BloomForCausalLM"),
        ("bloom", "mlp.ffn_dim", 160, "4 x dim"),
        ("bloom", "mlp.activation", "gelu", "gelu_tanh"),
        ("gpt2", "attention.bias", False, "GPT2LMHead"),
        ("gpt2", "attention.head_dim", 9, "num_heads, here 9"),
        ("olmo", "norm.eps", 1e-06, "be 1e-05, here 1e-06"),
        ("olmoe", "mlp.routing", "uniform", "learned"),
        ("qwen3_moe", "mlp.shared_ffn_dim", 8, "must be null"),
        ("deepseek_v3", "mlp.balance_rate", None, "bias"),
        ("gpt2", "norm.bias", False, "must be true"),
        ("llama", "mlp.activation", "xielu", "one of silu"),
        ("llama", "logit_cap", 15.0, "must be null, here 15"),
        ("llama", "embedding_scale", "sqrt_dim", "must be none"),
        ("mistral", "parametrization", MUP, "multiplies neither"),
        ("gemma3", "parametrization", MUP, "multiplies neither"),
        ("mistral", "attention.scale_dim", 9, "root"),
        ("llama", "attention.output_gate", True, "be false"),
        ("llama", "positions.rotary_fraction", 0.5, "must be 1.0, here 0.5"),
        ("llama", "attention.sinks", True, "be false"),
        ("gpt_oss", "attention.windows", [5, 4], "all"),
        ("gpt_oss", "mlp.swiglu_limit", None, "a limit"),
        ("gpt_oss", "mlp.linear_offset", 0.0, "be 1.0"),
        ("llama", "mlp.swiglu_limit", 7.0, "be null"),
        ("nemotron_h", "pattern", ["mamba", "attention/mlp"], "each layer is one part"),
        ("nemotron_h", "pattern", ["attention+mamba", "mlp"], "NemotronHForCausalLM"),
        ("nemotron_h", "tied_embeddings", True, "must be false, here true"),
        ("nemotron_h", "mlp.gated", True, "must be false"),
        ("nemotron_h", "mlp.activation", "xielu", "relu"),
        ("nemotron_h", "attention.bias", True, "false"),
        ("qwen3_next", "mlp.shared_gate", False, "must be true"),
        ("qwen3_next", "mlp.activation", "gelu", "of silu"),
        ("qwen3_next", "positions.rotary_fraction", 0.5, "without rounding up"),
        ("gemma3", "norm_placement", "before", "must be both"),
        ("gemma3", "embedding_scale", "none", "Gemma3ForCausalLM"),
        ("gemma3", "logit_cap", 30.0, "Gemma3ForCausalLM"),
        ("gemma3_slowed", "positions.local_base", None, "no rotary scaling"),
        ("nanochat", "embedding_norm", None, "the model.s norm"),
        ("nanochat", "embedding_scale", "sqrt_dim", "NanoChatFor"),
        ("apertus", "mlp.bias", True, "ApertusForCausalLM except"),
        ("bloom", "attention.windows", [5], "Bloom"),
        ("mistral", "attention.windows", [5, 4], "all"),
        ("kimi_linear", "tied_embeddings", True, "it must be false"),
        ("granitemoehybrid", "pattern", ["mamba", "attention/mlp"], "and then an"),
        ("granitemoehybrid", "pattern", ["attention+mamba/mlp"], "one Mamba-2"),
        ("granitemoehybrid", "mlp.renormalize", False, "sum to 1"),
        ("granitemoehybrid", "mlp.shared_ffn_dim", None, "a shared"),
        ("granitemoehybrid", "mlp.shared_gate", True, "be false"),
        ("granitemoehybrid", "mlp.bias", True, "GraniteMoeHybridForCausalLM"),
        ("granitemoehybrid", "mlp.scores", "sigmoid", "must be softmax"),
        ("granitemoehybrid", "logit_cap", 9.0, "must be null"),
    ],
)
def test_a_feature_that_no_class_has_is_named(name, path, value, words):
    assert_refused(changed(name, path, value), path, words)


@pytest.mark.parametrize(
    ("name", "change", "value", "path", "words"),
    [
        ("olmoe", "norm.eps", 1e-06, "attention.qk_norm", "OlmoeFor"),
        ("olmo_hybrid", "norm_placement", "before", "pattern", "OlmoHybridForCausalLM"),
        (
            "olmo_hybrid_rotated",
            "positions.local_base",
            9.0,
            "pattern",
            "scaling or local base",
        ),
        ("nemotron_h", "mixer.norm_before_gate", True, "mixers", "norm after its gate"),
        ("nemotron_h", "mixer.norm", None, "mixers", "the model's norm"),
        ("nemotron_h", "mixer.norm", RMS | {"eps": 1e-06}, "mixers", "the model's norm"),
        ("nemotron_h", "mixer.step_limits", [0.0, 0.1], "mixers", "without a largest step"),
        ("nemotron_h", "mixer.norm_placement", "after", "mixers", "NemotronHForCausalLM"),
        ("nemotron_h", "positions", ROTARY, "positions._target_", "be Positions, here Rotary"),
        ("nemotron_h", "mlp", olmoe()["mlp"], "mlp.gated", "mlp.num_experts"),
        ("qwen3_next", "mixer.negative_eigenvalues", True, "pattern", "negative eigenvalues"),
        ("qwen3_next", "mixer.norm", RMS | {"eps": 0.001}, "pattern", "the model's norm"),
        ("qwen3_next", "mixer.norm_placement", "both", "pattern", "Qwen3NextForCausalLM"),
        ("gemma3", "dim", 44, "attention.num_heads", "a multiple of the number"),
        ("kimi_linear", "mixer.key_dim", 8, "pattern", "have one width"),
        ("kimi_linear", "mixer.gate_rank", 8, "pattern", "have one width"),
        ("kimi_linear", "mixer.norm", RMS | {"eps": 1e-06}, "pattern", "the model's norm"),
        ("kimi_linear", "mixer.norm_placement", "after", "pattern", "the model's norm"),
        ("kimi_linear", "positions", ROTARY, "pattern", r"_target_ \(it must be Positions"),
        ("granitemoehybrid", "mixer.value_dim", 7, "pattern", "a multiple of model.dim"),
        ("granitemoehybrid", "mixer.norm", None, "pattern", "the model's norm"),
        ("granitemoehybrid", "mixer.norm_before_gate", True, "pattern", "after its gate"),
        # OLMo-2 is as near as OLMo-3; the message names both.
        ("olmo3", "positions.local_base", 9.0, "attention.windows", "scal"),
    ],
)
def test_the_feature_that_a_change_conflicts_with_is_named(name, change, value, path, words):
    assert_refused(changed(name, change, value), path, words)


def test_a_mixer_with_the_norm_placement_of_the_class_is_exported() -> None:
    section = changed("kimi_linear", "mixer.norm_placement", "before")
    assert choose_family(read_decoder(section)).model_type == "kimi_linear"
