"""The class is chosen by features; where none fits, what stands in the way is named."""

import pytest

from components.config.part_nodes import read_decoder
from components.convert.family import FAMILIES, choose_family
from components.errors import RecipeError
from tests.components.convert.base_section import RMS, ROTARY, Section
from tests.components.convert.conftest import (
    SECTIONS,
    apertus,
    bloom,
    deepseek_v3,
    gemma3,
    gemma3_slowed,
    gpt2,
    gpt_oss,
    llama,
    mistral,
    nanochat,
    olmo,
    olmo3,
    olmoe,
    qwen3_moe,
)
from tests.components.convert.hybrid_section import granitemoehybrid as granite
from tests.components.convert.hybrid_section import (
    kimi_linear,
    nemotron_h,
    olmo_hybrid,
    olmo_hybrid_rotated,
    qwen3_next,
)


@pytest.mark.parametrize("name", SECTIONS)
def test_each_section_finds_its_class(name: str) -> None:
    family = choose_family(read_decoder(SECTIONS[name]()))
    kinds = {one.model_type.removesuffix("_text"): one for one in FAMILIES}
    assert family is kinds[max(filter(name.startswith, kinds), key=len)]


MUP = {"_target_": "components.model.parametrization.MuP", "_partial_": True, "base_dim": 8}


DEEPER = {"_target_": "components.model.parametrization.CompleteP", "base_layers": 1}


def test_a_parametrization_that_multiplies_nothing_leaves_the_class() -> None:
    base = MUP | {"base_dim": llama()["dim"]}
    plain, first = (
        choose_family(read_decoder(llama())),
        read_decoder(llama() | {"parametrization": base}),
    )
    assert choose_family(first) is plain
    for more in ({"output_multiplier": 2.0}, {"embedding_multiplier": 2.0}, DEEPER):
        scaled = read_decoder(llama() | {"parametrization": base | more})
        assert not scaled.is_unscaled, more


def changed(section: Section, part: str, key: str, value: object) -> Section:
    return section | {part: section[part] | {key: value}}


def with_mixer(section: Section, **changes: object) -> Section:
    ((kind, mixer),) = section["mixers"].items()
    return section | {"mixers": {kind: mixer | changes}}


@pytest.mark.parametrize(
    ("section", "path", "words"),
    [
        (llama() | {"embedding_norm": RMS}, "embedding_norm", "LlamaForCausalLM"),
        (changed(llama(), "attention", "qk_norm", RMS), "attention.qk_norm", "Llama"),
        (bloom() | {"embedding_norm": None}, "embedding_norm", "BloomForCausalLM"),
        (changed(bloom(), "mlp", "ffn_dim", 160), "mlp.ffn_dim", "4 x dim"),
        (changed(bloom(), "mlp", "activation", "gelu"), "mlp.activation", "gelu_tanh"),
        (changed(gpt2(), "attention", "bias", False), "attention.bias", "GPT2LMHead"),
        (
            changed(gpt2(), "attention", "head_dim", 9),
            "attention.head_dim",
            "num_heads, here 9",
        ),
        (changed(olmo(), "norm", "eps", 1e-6), "norm.eps", "be 1e-05, here 1e-06"),
        (changed(olmoe(), "mlp", "routing", "uniform"), "mlp.routing", "learned"),
        (changed(olmoe(), "norm", "eps", 1e-6), "attention.qk_norm", "OlmoeFor"),
        (
            changed(qwen3_moe(), "mlp", "shared_ffn_dim", 8),
            "mlp.shared_ffn_dim",
            "must be null",
        ),
        (changed(deepseek_v3(), "mlp", "balance_rate", None), "mlp.balance_rate", "bias"),
        (changed(gpt2(), "norm", "bias", False), "norm.bias", "must be true"),
        (changed(llama(), "mlp", "activation", "xielu"), "mlp.activation", "one of silu"),
        (llama() | {"logit_cap": 15.0}, "logit_cap", "must be null, here 15"),
        (llama() | {"embedding_scale": "sqrt_dim"}, "embedding_scale", "must be none"),
        (mistral() | {"parametrization": MUP}, "parametrization", "multiplies neither"),
        (gemma3() | {"parametrization": MUP}, "parametrization", "multiplies neither"),
        (changed(mistral(), "attention", "scale_dim", 9), "attention.scale_dim", "root"),
        (changed(llama(), "attention", "output_gate", True), "attention.output_gate", "be fal"),
        (
            changed(llama(), "positions", "rotary_fraction", 0.5),
            "positions.rotary_fraction",
            "must be 1.0, here 0.5",
        ),
        (changed(llama(), "attention", "sinks", True), "attention.sinks", "be false"),
        (changed(gpt_oss(), "attention", "windows", [5, 4]), "attention.windows", "all"),
        (changed(gpt_oss(), "mlp", "swiglu_limit", None), "mlp.swiglu_limit", "a limit"),
        (changed(gpt_oss(), "mlp", "linear_offset", 0.0), "mlp.linear_offset", "be 1.0"),
        (changed(llama(), "mlp", "swiglu_limit", 7.0), "mlp.swiglu_limit", "be null"),
        (olmo_hybrid() | {"norm_placement": "before"}, "pattern", "OlmoHybridForCaus"),
        (
            changed(olmo_hybrid_rotated(), "positions", "local_base", 9.0),
            "pattern",
            "without scaling or local base",
        ),
        (
            nemotron_h() | {"pattern": ["mamba", "attention/mlp"]},
            "pattern",
            "each layer is one part",
        ),
        (
            nemotron_h() | {"pattern": ["attention+mamba", "mlp"]},
            "pattern",
            "NemotronHForCausalLM",
        ),
        (with_mixer(nemotron_h(), norm_before_gate=True), "mixers", "norm after its gate"),
        (with_mixer(nemotron_h(), norm=None), "mixers", "the model's norm"),
        (with_mixer(nemotron_h(), norm=RMS | {"eps": 1e-6}), "mixers", "the model's norm"),
        (with_mixer(nemotron_h(), step_limits=[0.0, 0.1]), "mixers", "without a largest step"),
        (with_mixer(nemotron_h(), norm_placement="after"), "mixers", "NemotronHForCausalLM"),
        (
            nemotron_h() | {"tied_embeddings": True},
            "tied_embeddings",
            "must be false, here true",
        ),
        (changed(nemotron_h(), "mlp", "gated", True), "mlp.gated", "must be false"),
        (changed(nemotron_h(), "mlp", "activation", "xielu"), "mlp.activation", "relu"),
        (changed(nemotron_h(), "attention", "bias", True), "attention.bias", "false"),
        (
            nemotron_h() | {"positions": olmo_hybrid_rotated()["positions"]},
            "positions._target_",
            "must be Positions, here Rotary",
        ),
        (nemotron_h() | {"mlp": olmoe()["mlp"]}, "mlp.gated", "mlp.num_experts"),
        (changed(qwen3_next(), "mlp", "shared_gate", False), "mlp.shared_gate", "must be true"),
        (changed(qwen3_next(), "mlp", "activation", "gelu"), "mlp.activation", "of silu"),
        (
            changed(qwen3_next(), "positions", "rotary_fraction", 0.5),
            "positions.rotary_fraction",
            "without rounding up",
        ),
        (
            with_mixer(qwen3_next(), negative_eigenvalues=True),
            "pattern",
            "negative eigenvalues",
        ),
        (with_mixer(qwen3_next(), norm=RMS | {"eps": 1e-3}), "pattern", "the model's norm"),
        (with_mixer(qwen3_next(), norm_placement="both"), "pattern", "Qwen3NextForCausalLM"),
        (gemma3() | {"norm_placement": "before"}, "norm_placement", "must be both"),
        (gemma3() | {"embedding_scale": "none"}, "embedding_scale", "Gemma3ForCausalLM"),
        (gemma3() | {"logit_cap": 30.0}, "logit_cap", "Gemma3ForCausalLM"),
        (
            changed(gemma3_slowed(), "positions", "local_base", None),
            "positions.local_base",
            "no rotary scaling",
        ),
        (gemma3() | {"dim": 44}, "attention.num_heads", "a multiple of the number"),
        (nanochat() | {"embedding_norm": None}, "embedding_norm", "the model.s norm"),
        (nanochat() | {"embedding_scale": "sqrt_dim"}, "embedding_scale", "NanoChatFor"),
        (changed(apertus(), "mlp", "bias", True), "mlp.bias", "ApertusForCausalLM except"),
        (changed(bloom(), "attention", "windows", [5]), "attention.windows", "Bloom"),
        (changed(mistral(), "attention", "windows", [5, 4]), "attention.windows", "all"),
        (with_mixer(kimi_linear(), key_dim=8), "pattern", "have one width"),
        (with_mixer(kimi_linear(), gate_rank=8), "pattern", "have one width"),
        (with_mixer(kimi_linear(), norm=RMS | {"eps": 1e-6}), "pattern", "the model's norm"),
        (with_mixer(kimi_linear(), norm_placement="after"), "pattern", "the model's norm"),
        (
            kimi_linear() | {"positions": ROTARY | {"_partial_": True}},
            "pattern",
            r"positions\._target_ \(it must be Posit",
        ),
        (kimi_linear() | {"tied_embeddings": True}, "tied_embeddings", "it must be fal"),
        (granite() | {"pattern": ["mamba", "attention/mlp"]}, "pattern", "and then an"),
        (granite() | {"pattern": ["attention+mamba/mlp"]}, "pattern", "one Mamba-2"),
        (with_mixer(granite(), value_dim=7), "pattern", "a multiple of model.dim"),
        (with_mixer(granite(), norm=None), "pattern", "the model's norm"),
        (with_mixer(granite(), norm_before_gate=True), "pattern", "after its gate"),
        (changed(granite(), "mlp", "renormalize", False), "mlp.renormalize", "sum to 1"),
        (changed(granite(), "mlp", "shared_ffn_dim", None), "mlp.shared_ffn_dim", "a sha"),
        (changed(granite(), "mlp", "shared_gate", True), "mlp.shared_gate", "be false"),
        (changed(granite(), "mlp", "bias", True), "mlp.bias", "GraniteMoeHybridForCausal"),
        (changed(granite(), "mlp", "scores", "sigmoid"), "mlp.scores", "must be softmax"),
        (granite() | {"logit_cap": 9.0}, "logit_cap", "must be null"),
        # As near as OLMo-3, which is named beside it, is OLMo-2.
        (changed(olmo3(), "positions", "local_base", 9.0), "attention.windows", "scal"),
    ],
)
def test_a_feature_that_no_class_has_is_named(section: Section, path: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words) as caught:
        choose_family(read_decoder(section))
    assert caught.value.path == f"model.{path}"


def test_a_mixer_with_the_placement_of_the_class_is_exported() -> None:
    family = choose_family(read_decoder(with_mixer(kimi_linear(), norm_placement="before")))
    assert family.model_type == "kimi_linear"
