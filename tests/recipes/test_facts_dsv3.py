"""dsv3_1t, value by value against the job script and the code of Optimus-LM at b87d464.

The job script is scripts/submit_dsv3-1trillion_job.pbs; its command is
``NUM_NODES=192 MODEL_CHOICE=deepseek-ai/DeepSeek-V3--N264-L96 EP=12 PP=24 BATCH_SIZE=24
PP_SCHEME=1f1b ENABLE_SAC=1 SAC_LEVEL=7 USE_OM_PGSHARDED_OPTIMIZER=1``.
"""

from functools import cache, reduce
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config

from benchmarks.ledger.proofs import plan_at_home
from command.actions.show import as_json
from command.arguments import read_point
from command.compose import compose_recipe

NODES, TILES, DATA, EXPERT, PIPELINE, MICROBATCHES = 192, 12, 8, 12, 24, 24
SEQUENCES = DATA * EXPERT * MICROBATCHES  # GLOBAL_BATCH_SIZE of run_experiment.sh
STEP = SEQUENCES * 2_048  # CONTEXT_SIZE of run_experiment.sh

# configuration_deepseek_v3.py, with N and L of config_utils.py
SHAPE: dict[str, Any] = {
    "model.dim": 7_168,
    "model.num_layers": 96,
    "model.vocab_size": 129_280,
    "model.padded_vocab_size": 129_280,
    "model.tied_embeddings": False,
    "model.dropout": 0.0,
    "model.positions.base": 10_000.0,
    "model.positions.scaling.factor": 40.0,
    "model.positions.scaling.original_tokens": 4_096,
    "model.positions.scaling.beta_fast": 32.0,
    "model.positions.scaling.beta_slow": 1.0,
    "model.attention.num_heads": 128,
    "model.attention.num_kv_heads": 128,
    "model.attention.query_rank": 1_536,
    "model.attention.key_value_rank": 512,
    "model.attention.head_dim": 128 + 64,
    "model.attention.rotary_dim": 64,
    "model.attention.value_dim": 128,
    "model.attention.latent_norm.eps": 1e-6,
    "model.attention.bias": False,
    "model.num_dense_layers": 3,
    "model.dense_mlp.ffn_dim": 18_432,
    "model.mlp.num_experts": 264,
    "model.mlp.ffn_dim": 2_048,
    "model.mlp.shared_ffn_dim": 2_048,
    "model.mlp.top_k": 8,
    "model.mlp.num_groups": 8,
    "model.mlp.top_groups": 4,
    "model.mlp.weight_scale": 2.5,
    "model.mlp.renormalize": True,
    "model.mlp.scores": "sigmoid",
    "model.mlp.auxiliary_loss": 0.0,
    "model.mlp.activation": "silu",
    "model.norm.eps": 1e-6,
    "model.initialization.std": 0.02,
    "model.initialization.residual": "plain",
}
# The job script, and what dist_train.py and run_experiment.sh have without it.
RUN: dict[str, Any] = {
    "parallelism.data": DATA,
    "parallelism.expert": EXPERT,
    "parallelism.pipeline": PIPELINE,
    "parallelism.tensor": 1,
    "parallelism.schedule": "1f1b",
    "parallelism.stages_per_rank": 1,
    "parallelism.microbatch_sequences": 1,
    "parallelism.recompute": ["attention", "mlp", "norms"],
    "parallelism.zero": 1,
    "parallelism.expert_aware": True,
    "parallelism.expert_dispatch": "all_gather",
    "budget.sequence_length": 2_048,
    "budget.global_batch_tokens": STEP,
    "optimizer.lr": 4e-4,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.95,
    "optimizer.eps": 1e-8,
    "optimizer.weight_decay": 0.1,
    "optimizer.clip_norm": 1.0,
    "optimizer.clip_after_tokens": 2_500 * STEP,
    "schedule.warmup_tokens": 2_500 * STEP,
    "schedule.warmup_from": 0.1,  # min_lr 4e-5
    "schedule.end": 0.1,
    "precision.compute": "bfloat16",
    "precision.accumulate": "bfloat16",
    "checkpoint.every_tokens": 1_000 * STEP,
    "cluster.nodes": NODES,
    "cluster.devices_per_node": TILES,
    "cluster.name": "aurora",
}
CONFIG: dict[str, Any] = {
    "hidden_size": 7_168,
    "num_hidden_layers": 96,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1_536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "intermediate_size": 18_432,
    "first_k_dense_replace": 3,
    "moe_intermediate_size": 2_048,
    "n_routed_experts": 264,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "vocab_size": 129_280,
    "tie_word_embeddings": False,
}


@cache
def shown(*words: str) -> dict[str, Any]:
    return dict(as_json(compose_recipe(read_point(["recipe=dsv3_1t", *words]))))


def value(path: str) -> Any:
    tree = shown("cluster=aurora")["recipe"]
    return reduce(lambda node, key: node[key], path.split("."), tree)


def test_the_shape_is_the_one_of_the_code() -> None:
    assert {path: value(path) for path in SHAPE} == SHAPE
    assert "balance_rate" not in value("model.mlp")
    assert "mtp" not in value("model")


def test_the_run_is_the_one_of_the_job_script() -> None:
    assert {path: value(path) for path in RUN} == RUN
    derived = shown("cluster=aurora")["derived"]
    assert derived["ranks"] == NODES * TILES == DATA * EXPERT * PIPELINE
    assert derived["microbatches_per_step"] == MICROBATCHES
    assert derived["layers_by_stage"] == [4] * PIPELINE


def test_parameters_are_those_of_transformers_and_active_ones_those_of_the_readme() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(DeepseekV3Config(**CONFIG))
    total = sum(parameter.numel() for parameter in model.parameters())
    counts = shown("cluster=aurora")["derived"]["parameters"]
    assert counts["total"] == total == 1_106_552_650_752
    assert counts["active"] == 58_043_759_616
    assert counts["padding"] == 0


def test_the_spare_nodes_of_the_job_script_lead_to_the_queue_prod() -> None:
    """Its 256 nodes are the fewest of that queue; 192 have debug-scaling alone."""
    alone = plan_at_home("dsv3_1t")
    assert alone["memory"]["verdict"] == "fits"
    assert alone["limit"]["figure"] == "cluster.nodes"
    assert "debug-scaling" in alone["limit"]["problem"]
    cluster = shown("cluster=aurora", "cluster.spare_nodes=64")["recipe"]["cluster"]
    nodes = cluster["nodes"] + cluster["spare_nodes"]
    queues = [queue for queue in cluster["queues"] if queue["fewest_nodes"] == nodes]
    assert [queue["route"] for queue in queues] == ["prod"]


def test_the_miniature_still_routes_in_groups_after_a_dense_layer() -> None:
    model = shown("scale=mini")["recipe"]["model"]
    assert model["num_dense_layers"] == 1
    assert 1 < model["mlp"]["top_groups"] < model["mlp"]["num_groups"]
    assert 1 < model["mlp"]["top_k"] < model["mlp"]["num_experts"]
