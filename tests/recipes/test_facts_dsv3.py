"""dsv3_1t: what follows from the job script and the code of Optimus-LM at b87d464."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config

from benchmarks.ledger.proofs import plan_at_home
from tests.recipes.compositions import shown

CONFIG: dict[str, Any] = {
    "hidden_size": 7_168, "num_hidden_layers": 96, "num_attention_heads": 128,
    "num_key_value_heads": 128, "q_lora_rank": 1_536, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "intermediate_size": 18_432, "first_k_dense_replace": 3, "moe_intermediate_size": 2_048,
    "n_routed_experts": 264, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "vocab_size": 129_280, "tie_word_embeddings": False,
}  # fmt: skip


def test_the_model_has_no_balance_and_no_prediction_of_more_tokens() -> None:
    model = shown("dsv3_1t", "cluster=aurora")["recipe"]["model"]
    assert "balance_rate" not in model["mlp"]
    assert "mtp" not in model


def test_parameters_equal_transformers_and_the_readme() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(DeepseekV3Config(**CONFIG))
    total = sum(parameter.numel() for parameter in model.parameters())
    counts = shown("dsv3_1t", "cluster=aurora")["derived"]["parameters"]
    assert counts["total"] == total == 1_106_552_650_752
    assert counts["active"] == 58_043_759_616
    assert counts["padding"] == 0


def test_the_spare_nodes_of_the_job_script_lead_to_the_queue_prod() -> None:
    """Its 256 nodes are the fewest of that queue; 192 have debug-scaling alone."""
    alone = plan_at_home("dsv3_1t")
    assert alone["memory"]["verdict"] == "fits"
    assert alone["limit"]["figure"] == "cluster.nodes"
    assert "debug-scaling" in alone["limit"]["problem"]
    cluster = shown("dsv3_1t", "cluster=aurora", "cluster.spare_nodes=64")["recipe"]["cluster"]
    nodes = cluster["nodes"] + cluster["spare_nodes"]
    queues = [queue for queue in cluster["queues"] if queue["fewest_nodes"] == nodes]
    assert [queue["route"] for queue in queues] == ["prod"]


def test_the_miniature_still_routes_in_groups_after_a_dense_layer() -> None:
    model = shown("dsv3_1t", "scale=mini")["recipe"]["model"]
    assert model["num_dense_layers"] == 1
    assert 1 < model["mlp"]["top_groups"] < model["mlp"]["num_groups"]
    assert 1 < model["mlp"]["top_k"] < model["mlp"]["num_experts"]
