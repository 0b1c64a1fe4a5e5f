#!/bin/bash
#SBATCH --job-name=apertus_8b
#SBATCH --account=<account>
#SBATCH --partition=normal
#SBATCH --nodes=256
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=72
#SBATCH --gpus-per-node=4
#SBATCH --constraint=thp_never&nvidia_vboost_enabled
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@660
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --array=1-87%1
#SBATCH --output=/path/to/kochbuch/runs/apertus_8b-full/jobs/%A_%a.log
# What this script says is there; what ranks say, rank 0 too, is in ranks/JOB-NODE.log beside.

cd /path/to/kochbuch || exit
# The sources in brackets are those of conf/cluster/alps.yaml.
export NCCL_NET='AWS Libfabric'  # fail rather than fall back to sockets (CSCS)
export NCCL_NET_GDR_LEVEL=PHB  # a port reads devices itself (CSCS)
export NCCL_CROSS_NIC=1  # goes with it (CSCS)
export NCCL_PROTO=^LL128  # slower on Slingshot since NCCL 2.27 (CSCS)
export FI_CXI_DEFAULT_CQ_SIZE=131072  # best over many programs, as the next four (CSCS)
export FI_CXI_DEFAULT_TX_SIZE=16384  # goes with it (CSCS)
export FI_CXI_DISABLE_HOST_REGISTER=1  # goes with it (CSCS)
export FI_CXI_RX_MATCH_MODE=software  # goes with it (CSCS)
export FI_MR_CACHE_MONITOR=userfaultfd  # goes with it (CSCS)
export MPICH_GPU_SUPPORT_ENABLED=0  # MPI and NCCL on one device may wait for each other (CSCS)
export UCX_HANDLE_ERRORS=none  # its handler hides the first error (CSCS)
export PMIX_MCA_psec=^munge  # an image has no munge (CSCS)
source /path/to/kochbuch/.venv/bin/activate
PYTHONPATH="/path/to/kochbuch$(tr : '\n' <<< "${PYTHONPATH-}" | sed -n 's|^/|:/|p' | tr -d '\n')" && export PYTHONPATH PYTHONSAFEPATH=1  # no relative entry
node=/tmp/kochbuch-$SLURM_JOB_ID
# Compiled kernels stay on the node: in a cache that nodes share they race (docs/environments.md).
for cache in TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR CUDA_CACHE_PATH; do export "$cache=${!cache:-$node/cache/$cache}"; done
# Memory of a device in segments that grow, unless somebody has set torch's allocator already.
[ -n "${PYTORCH_CUDA_ALLOC_CONF-}" ] || export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF-expandable_segments:True}"
run=/path/to/kochbuch/runs/apertus_8b-full
mkdir -p "$run/ranks"
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun takes it no more from sbatch, since 22.05

# By 3 this ends the chain, and jobs/chain.jsonl says why.
python -m cluster.begin "$run" || exit $(($? != 3))

MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

trap 'touch "$run/stop"' USR1  # 660 s before the wall: the run saves and stops
# Compiled kernels and copies of Python go with the job.
remove_from_nodes() { timeout 300 srun --kill-on-bad-exit=1 "--nodelist=$run/preflight/hosts" "--nodes=$(wc -l < $run/preflight/hosts)" "--ntasks=$(wc -l < $run/preflight/hosts)" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 --overlap rm -rf "$node"; }
trap remove_from_nodes EXIT

launch() {
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
  # Each node looks at itself first; what is bad is left out, or the job ends (docs/preflight.md).
  timeout --kill-after=10 360 srun --kill-on-bad-exit=1 "--nodelist=$run/preflight/hosts" "--nodes=$(wc -l < $run/preflight/hosts)" "--ntasks=$(wc -l < $run/preflight/hosts)" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 \
    --output="$run/ranks/%A_%a-preflight-%N.log" python -m components.preflight "$run" & looking=$!
  python -m cluster.preflight "$run"
  status=$?
  timeout 5 tail --pid="$looking" -s 0.2 -f /dev/null; kill "$looking" 2> /dev/null; wait "$looking"
  [ "$status" -eq 0 ] || return "$status"
  nodes=$(wc -l < "$run/preflight/nodes")
  MASTER_ADDR=$(head -n 1 "$run/preflight/nodes")
  # One task a rank. Network ports: a port for each module; the plugin finds it.
  srun --kill-on-bad-exit=1 --output="$run/ranks/%A_%a-%N.log" --label --open-mode=append \
    --nodelist="$run/preflight/nodes" --nodes="$nodes" --ntasks=$((nodes * 4)) \
    python -m components.train "$run" &
  wait $!
  status=$?
  [ "$status" -le 128 ] || { wait $!; status=$?; }  # the signal ended the first wait, not the ranks
  return "$status"
}
launch
python -m cluster.end "$run" $?  # says what happened; its status is the job's
