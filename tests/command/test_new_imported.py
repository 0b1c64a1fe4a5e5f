"""``action=new like=FOLDER`` writes a recipe of exactly the model in its ``config.json``."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.main import main
from components.build import build_node
from components.config.recipe import Recipe
from components.config.schema.types import to_plain
from tests.command.test_new import save_tokenizer, write_texts

Said = pytest.CaptureFixture[str]

PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "hugging_face"
PRINTED = r"python \S*run\.py (.*)"
FILES = sorted(file.stem for file in PUBLISHED.glob("*.json"))
OPENSCI_1B7 = 24 * (4 * 2_048**2 + 3 * 2_048 * 8_192) + 50_304 * 2_048  # matrices
OPENSCI_1B7 += 24 * (2 * 64 + 2 * 2_048 + 5 * 2_048 + 2 * 8_192) + 2_048  # norms and biases
Config = dict[str, Any]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder; a clone's recipes lie in it, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("command.new_recipe.page.ROOT", tmp_path)
    return tmp_path


def published(name: str) -> Config:
    config: Config = json.loads((PUBLISHED / f"{name}.json").read_text("utf-8"))
    return config


def put(home: Path, config: Config) -> None:
    (home / "hf").mkdir(exist_ok=True)
    (home / "hf" / "config.json").write_text(json.dumps(config), "utf-8")


def imported(*words: str) -> None:
    assert main(["action=new", "like=hf", "name=mine", *words]) == 0


def composed(*words: str) -> Recipe:
    return compose_recipe(read_point(["recipe=recipes/mine.yaml", *words]))


def refused(capfd: Said, *words: str) -> str:
    before = sorted(Path.cwd().rglob("*"))
    assert main(["action=new", "like=hf", "name=mine", *words]) == 2
    assert sorted(Path.cwd().rglob("*")) == before
    return capfd.readouterr().err


def parameters_of_the_class(config: Config) -> int:
    """Build the class of ``transformers`` that such a file stands for, without storage."""
    if config["model_type"] == "opensci":  # its class is not in transformers
        return OPENSCI_1B7
    kind = {key: value for key, value in config.items() if key != "model_type"}
    made = AutoConfig.for_model(config["model_type"], **kind)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(made)
    count: int = model.num_parameters()
    return count


@pytest.mark.quick("llama3_2_1b", "qwen3_0_6b", "smollm3_3b")
@pytest.mark.parametrize("name", FILES)
def test_published_file_gives_same_size(name: str, home: Path, capfd: Said) -> None:
    config = published(name)
    put(home, config)
    imported()
    out, err = capfd.readouterr()
    assert out == f"{home / 'recipes' / 'mine.yaml'}\n"
    recipe = composed("scale=full")
    total = parameters_of_the_class(config)
    assert recipe.derived_numbers.parameters.total == total
    assert f"of {config['architectures'][0]}, as in the config.json" in err
    assert f"{total:,} parameters on" in err
    assert recipe.decoder_spec.padded_vocab_size == config["vocab_size"]


# One of each kind of layer: of the others only sizes differ.
KINDS = (
    *("apertus_8b", "deepseek_v3", "gemma3_1b", "gpt2", "nanochat_d32", "olmo3_7b"),
    *("qwen3_30b_a3b", "smollm3_3b", "kimi_linear_48b", "granite_4_0_h_micro"),
)


@pytest.mark.quick("deepseek_v3", "gemma3_1b")
@pytest.mark.parametrize("name", KINDS)
def test_an_imported_miniature_has_finite_loss_and_gradients(name: str, home: Path) -> None:
    put(home, published(name))
    imported()
    recipe = composed()
    assert recipe.derived_numbers.parameters.total < 20e6
    torch.manual_seed(1)
    model: Any = build_node(to_plain(recipe.model), "model")
    tokens = torch.randint(recipe.decoder_spec.vocab_size, (1, 65))
    loss = model.compute_loss(tokens[:, :-1], tokens[:, 1:].contiguous())
    loss.backward()
    assert loss.isfinite()
    assert all(one.grad is None or one.grad.isfinite().all() for one in model.parameters())


@pytest.mark.long
def test_an_imported_miniature_trains(home: Path, capfd: Said) -> None:
    """Experts and a latent attention; the recipes here train the other parts."""
    put(home, published("deepseek_v3"))
    imported()
    words = ["budget.total_tokens=20_480", "run=run", "evaluation.every_tokens=20_480"]
    assert main(["recipe=recipes/mine.yaml", *words]) == 0
    results = json.loads((home / "run" / "results.json").read_text("utf-8"))
    assert results["loss"] < results["held_out"]["unigram"] + 3
    assert "Traceback" not in capfd.readouterr().err


def test_values_missing_in_the_file_are_assumed_with_a_reason(home: Path) -> None:
    put(home, published("llama3_2_1b"))
    imported()
    recipe = composed("scale=full")
    assert recipe.scale.shrink == "none"
    assert recipe.budget.sequence_length == 2_048
    tokens = recipe.budget.total_tokens
    assert 0.99 < tokens / (20 * recipe.derived_numbers.parameters.total) <= 1
    for name, value in {
        "total_tokens": tokens,
        "global_batch_tokens": recipe.budget.global_batch_tokens,
        "sequence_length": 2_048,
        "seed": 1,
        "tokenizer": recipe.tokenizer["vocab_size"],
    }.items():
        assert recipe.assumed[name].value == value
    assert "arXiv 2203.15556" in recipe.assumed["total_tokens"].reason
    assert "131,072" in recipe.assumed["sequence_length"].reason
    assert not recipe.published
    assert recipe.model["init_from"] == "none"


def test_the_text_and_tokenizer_of_the_folder_are_used(home: Path) -> None:
    put(home, published("gpt2"))
    write_texts(home / "texts")
    engine = save_tokenizer(home / "hf")
    imported("data=texts/*.txt")
    recipe = composed("scale=full")
    assert recipe.data.tokenizer_folder == "hf"
    assert recipe.tokenizer["vocab_size"] == engine.get_vocab_size()
    assert recipe.decoder_spec.vocab_size == 50_257
    assert recipe.data.sources["text"].files == ("texts/*.txt",)
    assert recipe.budget.total_tokens < 100_000  # the text, four times
    assert recipe.assumed["text"].value == "texts/*.txt"
    assert "tokenizer" not in recipe.assumed
    (home / "recipes" / "mine.yaml").unlink()
    imported("tokenizer=train")
    assert composed("scale=full").data.tokenizer_folder == "none"


def test_learned_positions_bound_the_sequence(home: Path) -> None:
    put(home, published("gpt2") | {"n_positions": 384})
    imported()
    recipe = composed("scale=full")
    assert recipe.budget.sequence_length == 256
    assert recipe.decoder_spec.positions.num_positions == 384


def test_given_weights_lower_the_rate(home: Path, capfd: Said) -> None:
    put(home, published("olmo2_1b"))
    assert "hf has no *.safetensors" in refused(capfd, "weights=true")
    imported()
    scratch = composed("scale=full").optimizer["lr"]
    (home / "recipes" / "mine.yaml").unlink()
    (home / "hf" / "model.safetensors").touch()
    imported("weights=true")
    recipe = composed("scale=full")
    assert recipe.model["init_from"] == "hf"
    assert recipe.optimizer["lr"] == pytest.approx(scratch / 10, rel=0.05)


def printed_commands(text: str) -> list[list[str]]:
    """Return the words of each command of ``run.py`` in a message or a page."""
    lines = [re.sub(r"   .*$", "", line.strip("# \n")) for line in text.splitlines()]
    return [shlex.split(found[1]) for line in lines if (found := re.search(PRINTED, line))]


@pytest.mark.parametrize("weights", ["false", "true"])
def test_every_printed_command_composes(weights: str, home: Path, capfd: Said) -> None:
    put(home, published("olmo2_1b"))
    (home / "hf" / "model.safetensors").touch()
    imported(f"weights={weights}", "file=my own.yaml")
    page = (home / "my own.yaml").read_text("utf-8").replace("`", "#")
    commands = printed_commands(capfd.readouterr().err) + printed_commands(page)
    commands = [words for words in commands if "action=new" not in words]
    assert len(commands) == (3 if weights == "true" else 4)
    for words in commands:
        recipe = compose_recipe(read_point(words))
        is_whole = recipe.scale.name == "full" or "action=show" in words
        assert is_whole or weights == "false"


@pytest.mark.long
def test_the_printed_command_trains_from_the_weights(home: Path, capfd: Said) -> None:
    engine = save_tokenizer(home / "hf")
    saved = PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<|endoftext|>")
    saved.save_pretrained(home / "hf")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64}
    pieces = engine.get_vocab_size()
    config = AutoConfig.for_model("llama", vocab_size=pieces, **sizes, **heads)
    AutoModelForCausalLM.from_config(config).save_pretrained(home / "hf")
    write_texts(home / "texts")
    words = ["weights=true", "file=mine.yaml", "data=texts/*.txt"]
    assert "trained with the tokenizer in hf" in refused(capfd, *words, "tokenizer=train")
    imported(*words)
    (command,) = printed_commands(capfd.readouterr().err)
    assert main([*command, "run=run", "budget.total_tokens=1024"]) == 0


def test_code_in_a_model_folder_is_ignored_with_a_message(home: Path, capfd: Said) -> None:
    code = {"auto_map": {"AutoModelForCausalLM": "modeling_mine.Mine"}}
    put(home, published("llama3_2_1b") | code)
    (home / "hf" / "modeling_mine.py").write_text("raise SystemExit('it ran')")
    imported()
    assert "auto_map in hf/config.json is ignored" in capfd.readouterr().err
    page = (home / "recipes" / "mine.yaml").read_text("utf-8")
    assert "modeling_mine" not in page


def test_a_folder_name_is_never_read_as_a_key(home: Path) -> None:
    put(home, published("llama3_2_1b"))
    (home / "hf").rename(home / "hf\ncitations: [teuken]")
    words = ["like=hf\ncitations: [teuken]", "name=mine"]
    assert main(["action=new", *words]) == 0
    recipe = composed("scale=full")
    assert recipe.citations == ()
    assert recipe.description.endswith("as in the config.json of hf citations: [teuken].")


def test_older_and_newer_spellings_are_the_same_model(home: Path) -> None:
    config = published("llama3_2_1b")
    scaling = config.pop("rope_scaling")
    put(home, config | {"rope_parameters": scaling | {"rope_theta": config.pop("rope_theta")}})
    imported()
    newer = yaml.safe_load((home / "recipes" / "mine.yaml").read_text("utf-8"))
    put(home, published("llama3_2_1b"))
    (home / "recipes" / "mine.yaml").unlink()
    imported()
    older = yaml.safe_load((home / "recipes" / "mine.yaml").read_text("utf-8"))
    assert newer == older


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("qwen3_0_6b", {"use_sliding_window": True}, "use_sliding_window: True, but recipes"),
        ("olmo_1b", {"clip_qkv": 8.0}, "clip_qkv: 8.0, but recipes support only None"),
        ("smollm3_3b", {"no_rope_layers": [1, 0, 1, 1] * 9}, "no_rope_layers: [1, 0, 1, 1, "),
        ("llama3_2_1b", {"num_key_value_heads": 5}, "num_kv_heads: 5 does not divide"),
        ("llama3_2_1b", {"num_hidden_layers": 10**12}, "model.num_layers: input should be"),
    ],
)
def test_an_unsupported_model_is_refused_with_key_and_value(
    name: str, change: Config, said: str, home: Path, capfd: Said
) -> None:
    put(home, published(name) | change)
    assert said in refused(capfd)


def test_a_folder_without_config_json_is_refused(home: Path, capfd: Said) -> None:
    assert "like: unknown recipe: 'hf'" in refused(capfd)
    (home / "hf").mkdir()
    assert "hf/config.json: cannot be read" in refused(capfd)
    assert main(["action=new", "name=mine", "weights=true"]) == 2
    assert "weights: like= is not a folder with weights" in capfd.readouterr().err
    assert main(["action=new", "name=mine", "like=other/hf"]) == 2
    assert "other/hf/config.json: cannot be read" in capfd.readouterr().err
    assert "the config.json in hf sets the size" in refused(capfd, "parameters=15M")
    put(home, {})
    assert "model_type: unknown model family None" in refused(capfd)
    assert "action=new does not accept recipe keys" in refused(capfd, "budget.seed=3")


def test_data_elsewhere_need_trusted_recipe(home, tmp_path_factory, capfd):
    elsewhere = tmp_path_factory.mktemp("scratch")
    put(elsewhere, published("olmo2_1b"))
    (elsewhere / "hf" / "model.safetensors").touch()
    words = [f"like={elsewhere / 'hf'}", "name=mine", "weights=true", "file=mine.yaml"]
    assert main(["action=new", *words]) == 2
    assert "is not in a trusted folder" in capfd.readouterr().err
