#!/bin/bash
#SBATCH --job-name=teuken7b
#SBATCH --account=<account>
#SBATCH --partition=booster
#SBATCH --nodes=128
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=12
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@660
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --array=1-87%1
#SBATCH --output=/path/to/kochbuch/runs/teuken7b-full/jobs/%A_%a.log
# The output of this script is there; the output of all ranks is in ranks/JOB-NODE.log.

cd /path/to/kochbuch || exit
# The sources in brackets are those of conf/cluster/juwels.yaml.
source /path/to/kochbuch/.venv/bin/activate
PYTHONPATH="/path/to/kochbuch$(tr : '\n' <<< "${PYTHONPATH-}" | sed -n 's|^/|:/|p' | tr -d '\n')" && export PYTHONPATH PYTHONSAFEPATH=1  # no relative entry
node=/tmp/kochbuch-$SLURM_JOB_ID
# Compiled kernels stay on the node: a shared cache has race conditions (docs/environments.md).
for cache in TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR CUDA_CACHE_PATH; do export "$cache=${!cache:-$node/cache/$cache}"; done
# Memory segments of a device grow, unless torch's allocator is already configured.
[ -n "${PYTORCH_CUDA_ALLOC_CONF-}" ] || export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF-expandable_segments:True}"
run=/path/to/kochbuch/runs/teuken7b-full
mkdir -p "$run/ranks"
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # since 22.05, srun does not inherit it from sbatch

# Status 3 ends the chain; jobs/chain.jsonl contains the reason.
python -m cluster.begin "$run" || exit $(($? != 3))

MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

trap 'touch "$run/stop"' USR1  # 660 s before the time limit: the run saves and stops
# Compiled kernels and copies of Python are deleted with the job.
remove_from_nodes() { timeout 300 srun --kill-on-bad-exit=1 "--nodelist=$run/preflight/hosts" "--nodes=$(wc -l < $run/preflight/hosts)" "--ntasks=$(wc -l < $run/preflight/hosts)" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 --overlap rm -rf "$node"; }
trap remove_from_nodes EXIT

launch() {
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
  # Each node checks itself first; bad nodes are excluded, or the job ends (docs/preflight.md).
  timeout --kill-after=10 360 srun --kill-on-bad-exit=1 "--nodelist=$run/preflight/hosts" "--nodes=$(wc -l < $run/preflight/hosts)" "--ntasks=$(wc -l < $run/preflight/hosts)" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 \
    --output="$run/ranks/%A_%a-preflight-%N.log" python -m components.preflight "$run" & looking=$!
  python -m cluster.preflight "$run"
  status=$?
  timeout 5 tail --pid="$looking" -s 0.2 -f /dev/null; kill "$looking" 2> /dev/null; wait "$looking"
  [ "$status" -eq 0 ] || return "$status"
  nodes=$(wc -l < "$run/preflight/nodes")
  MASTER_ADDR=$(head -n 1 "$run/preflight/nodes")
  # One task per rank. Network ports: each device shares a PCIe switch with one of four ports; NCCL finds it.
  srun --kill-on-bad-exit=1 --output="$run/ranks/%A_%a-%N.log" --label --open-mode=append \
    --nodelist="$run/preflight/nodes" --nodes="$nodes" --ntasks=$((nodes * 4)) \
    python -m components.train "$run" &
  wait $!
  status=$?
  [ "$status" -le 128 ] || { wait $!; status=$?; }  # the signal ended the first wait, not the ranks
  return "$status"
}
launch
python -m cluster.end "$run" $?  # records the result; its status is the job's status
