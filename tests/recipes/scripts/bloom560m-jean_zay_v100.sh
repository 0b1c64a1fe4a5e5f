#!/bin/bash
#SBATCH --job-name=bloom560m
#SBATCH --account=<account>@v100
#SBATCH --qos=qos_gpu-t3
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=10
#SBATCH --constraint=v100-32g
#SBATCH --gres=gpu:4
#SBATCH --hint=nomultithread
#SBATCH --time=20:00:00
#SBATCH --signal=B:USR1@660
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --array=1-19%1
#SBATCH --output=/path/to/kochbuch/runs/bloom560m-full/jobs/%A_%a.log
# What this script says is there; what ranks say, rank 0 too, is in ranks/JOB-NODE.log beside.

cd /path/to/kochbuch || exit
# The sources in brackets are those of conf/cluster/jean_zay_v100.yaml.
module purge
source /path/to/kochbuch/.venv/bin/activate
PYTHONPATH="/path/to/kochbuch$(tr : '\n' <<< "${PYTHONPATH-}" | sed -n 's|^/|:/|p' | tr -d '\n')" && export PYTHONPATH PYTHONSAFEPATH=1  # no relative entry
node=/tmp/kochbuch-$SLURM_JOB_ID
# Compiled kernels stay on the node: in a cache that nodes share they race (docs/environments.md).
for cache in TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR CUDA_CACHE_PATH; do export "$cache=${!cache:-$node/cache/$cache}"; done
# Memory of a device in segments that grow, unless somebody has set torch's allocator already.
[ -n "${PYTORCH_CUDA_ALLOC_CONF-}" ] || export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF-expandable_segments:True}"
run=/path/to/kochbuch/runs/bloom560m-full
mkdir -p "$run/ranks"
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun takes it no more from sbatch, since 22.05

# By 3 this ends the chain, and jobs/chain.jsonl says why.
python -m cluster.begin "$run" || exit $(($? != 3))

MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

trap 'touch "$run/stop"' USR1  # 660 s before the wall: the run saves and stops
# Compiled kernels and copies of Python go with the job.
remove_from_nodes() { timeout 300 srun --kill-on-bad-exit=1 --wait=60 "--nodelist=$run/preflight/hosts" "--nodes=$(wc -l < $run/preflight/hosts)" "--ntasks=$(wc -l < $run/preflight/hosts)" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 --overlap rm -rf "$node"; }
trap remove_from_nodes EXIT

launch() {
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
  # Each node looks at itself first; what is bad is left out, or the job ends (docs/preflight.md).
  timeout --kill-after=10 360 srun --kill-on-bad-exit=1 --wait=60 "--nodelist=$run/preflight/hosts" "--nodes=$(wc -l < $run/preflight/hosts)" "--ntasks=$(wc -l < $run/preflight/hosts)" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 \
    --output="$run/ranks/%A_%a-preflight-%N.log" python -m components.preflight "$run" & looking=$!
  python -m cluster.preflight "$run"
  status=$?
  timeout 5 tail --pid="$looking" -s 0.2 -f /dev/null; kill "$looking" 2> /dev/null; wait "$looking"
  [ "$status" -eq 0 ] || return "$status"
  nodes=$(wc -l < "$run/preflight/nodes")
  MASTER_ADDR=$(head -n 1 "$run/preflight/nodes")
  # One task a rank. Network ports: left to NCCL.
  srun --kill-on-bad-exit=1 --wait=60 --output="$run/ranks/%A_%a-%N.log" --label --open-mode=append \
    --nodelist="$run/preflight/nodes" --nodes="$nodes" --ntasks=$((nodes * 4)) \
    python -m components.train "$run" &
  wait $!
  status=$?
  [ "$status" -le 128 ] || { wait $!; status=$?; }  # the signal ended the first wait, not the ranks
  return "$status"
}
launch
python -m cluster.end "$run" $?  # says what happened; its status is the job's
