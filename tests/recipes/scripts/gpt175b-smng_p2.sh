#!/bin/bash
#SBATCH --job-name=gpt175b
#SBATCH --account=<account>
#SBATCH --partition=general
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=14
#SBATCH --export=NONE
#SBATCH --ear=off
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@840
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/path/to/kochbuch/runs/gpt175b-full/jobs/%j.log
# What this script says is there; what ranks say, rank 0 too, is in ranks/JOB-NODE.log beside.

cd /path/to/kochbuch || exit
# The sources in brackets are those of conf/cluster/smng_p2.yaml.
module load slurm_setup
module switch stack/24.5.0
module load intel-toolkit/2025.2.0
ulimit -n hard  # hundreds of ranks open more sockets than the default allows (R)
export ZE_FLAT_DEVICE_HIERARCHY=FLAT  # a rank is a tile (R, for torch without IPEX)
export ZE_ENABLE_PCI_ID_DEVICE_ORDER=1  # the same order of tiles in every process (R)
export SYCL_PI_LEVEL_ZERO_USE_IMMEDIATE_COMMANDLISTS=1  # the study's setting (R)
export UR_L0_IN_ORDER_BARRIER_BY_SIGNAL=0  # a flaw of the driver (R)
export CCL_OP_SYNC=1  # stable first; 0 would overlap (R)
export CCL_ALLGATHERV_MEDIUM_SIZE_THRESHOLD=0  # a flaw of oneCCL, MLSL-2881 (R, ALCF)
export PSM3_RDMA=1  # libfabric over InfiniBand (U)
export PSM3_GPUDIRECT=0  # does not work there yet (U)
source /path/to/kochbuch/.venv/bin/activate
PYTHONPATH="/path/to/kochbuch$(tr : '\n' <<< "${PYTHONPATH-}" | sed -n 's|^/|:/|p' | tr -d '\n')" && export PYTHONPATH PYTHONSAFEPATH=1  # no relative entry
node=/tmp/kochbuch-$SLURM_JOB_ID
# Compiled kernels stay on the node: in a cache that nodes share they race (docs/environments.md).
for cache in TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR NEO_CACHE_DIR SYCL_CACHE_DIR; do export "$cache=${!cache:-$node/cache/$cache}"; done
run=/path/to/kochbuch/runs/gpt175b-full
mkdir -p "$run/ranks"
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun takes it no more from sbatch, since 22.05

# By 3 this ends the chain, and jobs/chain.jsonl says why.
python -m cluster.begin "$run" || exit $(($? != 3))

MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

trap 'touch "$run/stop"' USR1  # 840 s before the wall: the run saves and stops
# Compiled kernels and copies of Python go with the job.
remove_from_nodes() { timeout 300 srun --export=ALL --kill-on-bad-exit=1 "--nodelist=$run/preflight/hosts" "--nodes=$(wc -l < $run/preflight/hosts)" "--ntasks=$(wc -l < $run/preflight/hosts)" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 --overlap rm -rf "$node"; }
trap remove_from_nodes EXIT

launch() {
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
  # Each node looks at itself first; what is bad is left out, or the job ends (docs/preflight.md).
  timeout --kill-after=10 360 srun --export=ALL --kill-on-bad-exit=1 "--nodelist=$run/preflight/hosts" "--nodes=$(wc -l < $run/preflight/hosts)" "--ntasks=$(wc -l < $run/preflight/hosts)" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 \
    --output="$run/ranks/%j-preflight-%N.log" python -m components.preflight "$run" & looking=$!
  python -m cluster.preflight "$run"
  status=$?
  timeout 5 tail --pid="$looking" -s 0.2 -f /dev/null; kill "$looking" 2> /dev/null; wait "$looking"
  [ "$status" -eq 0 ] || return "$status"
  nodes=$(wc -l < "$run/preflight/nodes")
  MASTER_ADDR=$(head -n 1 "$run/preflight/nodes")
  # One task a rank. Network ports: two ports for eight tiles; PSM3 chooses.
  srun --export=ALL --kill-on-bad-exit=1 --output="$run/ranks/%j-%N.log" --label --open-mode=append \
    --nodelist="$run/preflight/nodes" --nodes="$nodes" --ntasks=$((nodes * 8)) \
    python -m components.train "$run" &
  wait $!
  status=$?
  [ "$status" -le 128 ] || { wait $!; status=$?; }  # the signal ended the first wait, not the ranks
  return "$status"
}
launch
python -m cluster.end "$run" $?  # says what happened; its status is the job's
