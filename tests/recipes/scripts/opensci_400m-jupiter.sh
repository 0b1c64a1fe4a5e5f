#!/bin/bash
#SBATCH --job-name=opensci_400m
#SBATCH --account=<account>
#SBATCH --partition=booster
#SBATCH --nodes=32
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=72
#SBATCH --gres=gpu:4
#SBATCH --time=11:00:00
#SBATCH --signal=B:USR1@660
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/path/to/kochbuch/runs/opensci_400m-full/jobs/%j.log
# What this script says is there; what ranks say, rank 0 too, is in ranks/JOB-NODE.log beside.

cd /path/to/kochbuch || exit
# The sources in brackets are those of conf/cluster/jupiter.yaml.
module load Stages/2026 GCC/14.3.0 Python/3.13.5 CUDA/13
unset PYTHONPATH  # the stage's own packages would hide those of the environment, as on JUWELS
export NCCL_IB_TIMEOUT=18  # as runs of OpenEuroLLM have it (OEL; TIT has 100)
export NCCL_IB_RETRY_CNT=20  # goes with it (OEL)
export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_3  # the four ports of the devices (OEL)
export NCCL_NET_GDR_LEVEL=2  # a port reads devices across PCIe switches (OEL)
export NCCL_NET_GDR_READ=1  # goes with it (OEL)
export NCCL_PROTO=Simple  # as runs of OpenEuroLLM have it (OEL)
export NCCL_SOCKET_IFNAME=ib0  # the names below are addresses of this interface (OEL)
export NCCL_SOCKET_FAMILY=AF_INET  # nodes have no IPv6 (OEL)
export GLOO_SOCKET_FAMILY=AF_INET  # as for NCCL (OEL)
export CUDA_VISIBLE_DEVICES=0,1,2,3  # the scheduler would show each rank one device, called 0 (P, OEL)
source /path/to/kochbuch/.venv/bin/activate
PYTHONPATH="/path/to/kochbuch$(tr : '\n' <<< "${PYTHONPATH-}" | sed -n 's|^/|:/|p' | tr -d '\n')" && export PYTHONPATH PYTHONSAFEPATH=1  # no relative entry
node=/tmp/kochbuch-$SLURM_JOB_ID
# Compiled kernels stay on the node: in a cache that nodes share they race (docs/environments.md).
for cache in TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR CUDA_CACHE_PATH; do export "$cache=${!cache:-$node/cache/$cache}"; done
# Memory of a device in segments that grow, unless somebody has set torch's allocator already.
[ -n "${PYTORCH_CUDA_ALLOC_CONF-}" ] || export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF-expandable_segments:True}"
run=/path/to/kochbuch/runs/opensci_400m-full
mkdir -p "$run/ranks"
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun takes it no more from sbatch, since 22.05

# By 3 this ends the chain, and jobs/chain.jsonl says why.
python -m cluster.begin "$run" || exit $(($? != 3))

MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

trap 'touch "$run/stop"' USR1  # 660 s before the wall: the run saves and stops
# Compiled kernels and copies of Python go with the job.
remove_from_nodes() { timeout 300 srun --kill-on-bad-exit=1 --mpi=none --gpu-bind=none "--nodelist=$run/preflight/hosts" "--nodes=$(wc -l < $run/preflight/hosts)" "--ntasks=$(wc -l < $run/preflight/hosts)" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 --overlap rm -rf "$node"; }
trap remove_from_nodes EXIT

launch() {
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)-interconnect-1.jupiter.internal  # as other nodes reach it
  # Each node looks at itself first; what is bad is left out, or the job ends (docs/preflight.md).
  timeout --kill-after=10 360 srun --kill-on-bad-exit=1 --mpi=none --gpu-bind=none "--nodelist=$run/preflight/hosts" "--nodes=$(wc -l < $run/preflight/hosts)" "--ntasks=$(wc -l < $run/preflight/hosts)" --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 \
    --output="$run/ranks/%j-preflight-%N.log" python -m components.preflight "$run" & looking=$!
  python -m cluster.preflight "$run"
  status=$?
  timeout 5 tail --pid="$looking" -s 0.2 -f /dev/null; kill "$looking" 2> /dev/null; wait "$looking"
  [ "$status" -eq 0 ] || return "$status"
  nodes=$(wc -l < "$run/preflight/nodes")
  MASTER_ADDR=$(head -n 1 "$run/preflight/nodes")-interconnect-1.jupiter.internal
  # One task a rank. Network ports: named in NCCL_IB_HCA.
  srun --kill-on-bad-exit=1 --mpi=none --gpu-bind=none --output="$run/ranks/%j-%N.log" --label --open-mode=append \
    --nodelist="$run/preflight/nodes" --nodes="$nodes" --ntasks=$((nodes * 4)) \
    python -m components.train "$run" &
  wait $!
  status=$?
  [ "$status" -le 128 ] || { wait $!; status=$?; }  # the signal ended the first wait, not the ranks
  return "$status"
}
launch
python -m cluster.end "$run" $?  # says what happened; its status is the job's
