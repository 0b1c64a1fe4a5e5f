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


def changed_mamba(**changes: object) -> Section:
    section = nemotron_h()
    return changed(section, "mixers", "mamba", section["mixers"]["mamba"] | changes)


def changed_mixer(key: str, value: object) -> Section:
    section = qwen3_next()
    return changed(section, "mixers", "delta", section["mixers"]["delta"] | {key: value})


def mixer_with(**changes: object) -> Section:
    section = kimi_linear()
    return changed(section, "mixers", "delta", section["mixers"]["delta"] | changes)


def granite_mamba(**changes: object) -> Section:
    section = granite()
    return changed(section, "mixers", "mamba", section["mixers"]["mamba"] | changes)


@pytest.mark.parametrize(
    ("section", "path", "words"),
    [
        (llama() | {"embedding_norm": RMS}, "model.embedding_norm", "LlamaForCausalLM"),
        (changed(llama(), "attention", "qk_norm", RMS), "model.attention.qk_norm", "Llama"),
        (bloom() | {"embedding_norm": None}, "model.embedding_norm", "BloomForCausalLM"),
        (changed(bloom(), "mlp", "ffn_dim", 160), "model.mlp.ffn_dim", "4 x dim"),
        (changed(bloom(), "mlp", "activation", "gelu"), "model.mlp.activation", "gelu_tanh"),
        (changed(gpt2(), "attention", "bias", False), "model.attention.bias", "GPT2LMHead"),
        (
            changed(gpt2(), "attention", "head_dim", 9),
            "model.attention.head_dim",
            "num_heads, here 9",
        ),
        (changed(olmo(), "norm", "eps", 1e-6), "model.norm.eps", "be 1e-05, here 1e-06"),
        (changed(olmoe(), "mlp", "routing", "uniform"), "model.mlp.routing", "learned"),
        (changed(olmoe(), "norm", "eps", 1e-6), "model.attention.qk_norm", "OlmoeFor"),
        (
            changed(qwen3_moe(), "mlp", "shared_ffn_dim", 8),
            "model.mlp.shared_ffn_dim",
            "must be null",
        ),
        (changed(deepseek_v3(), "mlp", "balance_rate", None), "model.mlp.balance_rate", "bias"),
        (changed(gpt2(), "norm", "bias", False), "model.norm.bias", "must be true"),
        (changed(llama(), "mlp", "activation", "xielu"), "model.mlp.activation", "one of silu"),
        (llama() | {"logit_cap": 15.0}, "model.logit_cap", "must be null, here 15"),
        (llama() | {"embedding_scale": "sqrt_dim"}, "model.embedding_scale", "must be none"),
        (mistral() | {"parametrization": MUP}, "model.parametrization", "multiplies neither"),
        (gemma3() | {"parametrization": MUP}, "model.parametrization", "multiplies neither"),
        (changed(mistral(), "attention", "scale_dim", 9), "model.attention.scale_dim", "root"),
        (
            changed(llama(), "attention", "output_gate", True),
            "model.attention.output_gate",
            "be fal",
        ),
        (
            changed(llama(), "positions", "rotary_fraction", 0.5),
            *("model.positions.rotary_fraction", "must be 1.0, here 0.5"),
        ),
        (changed(llama(), "attention", "sinks", True), "model.attention.sinks", "be false"),
        (changed(gpt_oss(), "attention", "windows", [5, 4]), "model.attention.windows", "all"),
        (changed(gpt_oss(), "mlp", "swiglu_limit", None), "model.mlp.swiglu_limit", "a limit"),
        (changed(gpt_oss(), "mlp", "linear_offset", 0.0), "model.mlp.linear_offset", "be 1.0"),
        (changed(llama(), "mlp", "swiglu_limit", 7.0), "model.mlp.swiglu_limit", "be null"),
        (olmo_hybrid() | {"norm_placement": "before"}, "model.pattern", "OlmoHybridForCaus"),
        (
            changed(olmo_hybrid_rotated(), "positions", "local_base", 9.0),
            *("model.pattern", "without scaling or local base"),
        ),
        (
            nemotron_h() | {"pattern": ["mamba", "attention/mlp"]},
            *("model.pattern", "each layer is one part"),
        ),
        (
            nemotron_h() | {"pattern": ["attention+mamba", "mlp"]},
            *("model.pattern", "NemotronHForCausalLM"),
        ),
        (changed_mamba(norm_before_gate=True), "model.mixers", "norm after its gate"),
        (changed_mamba(norm=None), "model.mixers", "the model's norm"),
        (changed_mamba(norm=RMS | {"eps": 1e-6}), "model.mixers", "the model's norm"),
        (changed_mamba(step_limits=[0.0, 0.1]), "model.mixers", "without a largest step"),
        (changed_mamba(norm_placement="after"), "model.mixers", "NemotronHForCausalLM"),
        (
            nemotron_h() | {"tied_embeddings": True},
            *("model.tied_embeddings", "must be false, here true"),
        ),
        (changed(nemotron_h(), "mlp", "gated", True), "model.mlp.gated", "must be false"),
        (changed(nemotron_h(), "mlp", "activation", "xielu"), "model.mlp.activation", "relu"),
        (changed(nemotron_h(), "attention", "bias", True), "model.attention.bias", "false"),
        (
            nemotron_h() | {"positions": olmo_hybrid_rotated()["positions"]},
            *("model.positions._target_", "must be Positions, here Rotary"),
        ),
        (nemotron_h() | {"mlp": olmoe()["mlp"]}, "model.mlp.gated", "mlp.num_experts"),
        (
            changed(qwen3_next(), "mlp", "shared_gate", False),
            *("model.mlp.shared_gate", "must be true"),
        ),
        (changed(qwen3_next(), "mlp", "activation", "gelu"), "model.mlp.activation", "of silu"),
        (
            changed(qwen3_next(), "positions", "rotary_fraction", 0.5),
            *("model.positions.rotary_fraction", "without rounding up"),
        ),
        (changed_mixer("negative_eigenvalues", True), "model.pattern", "negative eigenvalues"),
        (changed_mixer("norm", RMS | {"eps": 1e-3}), "model.pattern", "the model's norm"),
        (changed_mixer("norm_placement", "both"), "model.pattern", "Qwen3NextForCausalLM"),
        (gemma3() | {"norm_placement": "before"}, "model.norm_placement", "must be both"),
        (gemma3() | {"embedding_scale": "none"}, "model.embedding_scale", "Gemma3ForCausalLM"),
        (gemma3() | {"logit_cap": 30.0}, "model.logit_cap", "Gemma3ForCausalLM"),
        (
            changed(gemma3_slowed(), "positions", "local_base", None),
            *("model.positions.local_base", "no rotary scaling"),
        ),
        (gemma3() | {"dim": 44}, "model.attention.num_heads", "a multiple of the number"),
        (nanochat() | {"embedding_norm": None}, "model.embedding_norm", "the model.s norm"),
        (nanochat() | {"embedding_scale": "sqrt_dim"}, "model.embedding_scale", "NanoChatFor"),
        (
            changed(apertus(), "mlp", "bias", True),
            "model.mlp.bias",
            "ApertusForCausalLM except",
        ),
        (changed(bloom(), "attention", "windows", [5]), "model.attention.windows", "Bloom"),
        (changed(mistral(), "attention", "windows", [5, 4]), "model.attention.windows", "all"),
        (mixer_with(key_dim=8), "model.pattern", "have one width"),
        (mixer_with(gate_rank=8), "model.pattern", "have one width"),
        (mixer_with(norm=RMS | {"eps": 1e-6}), "model.pattern", "the model's norm"),
        (mixer_with(norm_placement="after"), "model.pattern", "the model's norm"),
        (
            kimi_linear() | {"positions": ROTARY | {"_partial_": True}},
            *("model.positions._target_", "it must be Posit"),
        ),
        (kimi_linear() | {"tied_embeddings": True}, "model.tied_embeddings", "it must be fal"),
        (granite() | {"pattern": ["mamba", "attention/mlp"]}, "model.pattern", "and then an"),
        (granite() | {"pattern": ["attention+mamba/mlp"]}, "model.pattern", "one Mamba-2"),
        (granite_mamba(value_dim=7), "model.pattern", "a multiple of model.dim"),
        (granite_mamba(norm=None), "model.pattern", "the model's norm"),
        (granite_mamba(norm_before_gate=True), "model.pattern", "after its gate"),
        (changed(granite(), "mlp", "renormalize", False), "model.mlp.renormalize", "sum to 1"),
        (
            changed(granite(), "mlp", "shared_ffn_dim", None),
            "model.mlp.shared_ffn_dim",
            "a sha",
        ),
        (changed(granite(), "mlp", "shared_gate", True), "model.mlp.shared_gate", "be false"),
        (
            changed(granite(), "mlp", "bias", True),
            "model.mlp.bias",
            "GraniteMoeHybridForCausal",
        ),
        (changed(granite(), "mlp", "scores", "sigmoid"), "model.mlp.scores", "must be softmax"),
        (granite() | {"logit_cap": 9.0}, "model.logit_cap", "must be null"),
        # As near as OLMo-3, which is named beside it, is OLMo-2.
        (changed(olmo3(), "positions", "local_base", 9.0), "model.attention.windows", "scal"),
    ],
)
def test_a_feature_that_no_class_has_is_named(section: Section, path: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words) as caught:
        choose_family(read_decoder(section))
    assert caught.value.path == path


def test_a_mixer_with_the_placement_of_the_class_is_exported() -> None:
    family = choose_family(read_decoder(mixer_with(norm_placement="before")))
    assert family.model_type == "kimi_linear"
