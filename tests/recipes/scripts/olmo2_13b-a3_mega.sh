#!/bin/bash
#SBATCH --job-name=olmo2_13b
#SBATCH --partition=a3mega
#SBATCH --nodes=128
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@360
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --array=1-23%1
#SBATCH --output=/path/to/kochbuch/runs/olmo2_13b-full/jobs/%A_%a.log
# What this script says is there; what ranks say, rank 0 too, is in ranks/JOB-NODE.log beside.

cd /path/to/kochbuch || exit
# The sources in brackets are those of conf/cluster/a3_mega.yaml.
NCCL_LIB_DIR=/var/lib/tcpxo/lib64 source /var/lib/tcpxo/lib64/nccl-env-profile.sh  # the library's own settings (CT)
export LD_LIBRARY_PATH=/var/lib/tcpxo/lib64:$LD_LIBRARY_PATH  # the library itself (CT)
export NCCL_FASTRAK_CTRL_DEV=enp0s12  # the port of control (CT)
export NCCL_FASTRAK_IFNAME=enp6s0,enp7s0,enp13s0,enp14s0,enp134s0,enp135s0,enp141s0,enp142s0  # a port a device (CT)
export NCCL_SOCKET_IFNAME=enp0s12  # the port of control, for what is set up (CT)
export NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY=/dev/aperture_devices  # where the devices' windows lie (CT)
source /path/to/kochbuch/.venv/bin/activate
PYTHONPATH="/path/to/kochbuch$(tr : '\n' <<< "${PYTHONPATH-}" | sed -n 's|^/|:/|p' | tr -d '\n')" && export PYTHONPATH PYTHONSAFEPATH=1  # no relative entry
node=/mnt/localssd/kochbuch-$SLURM_JOB_ID
# Compiled kernels stay on the node: in a cache that nodes share they race (docs/environments.md).
for cache in TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR CUDA_CACHE_PATH; do export "$cache=${!cache:-$node/cache/$cache}"; done
# Memory of a device in segments that grow, unless somebody has set torch's allocator already.
[ -n "${PYTORCH_CUDA_ALLOC_CONF-}" ] || export PYTORCH_ALLOC_CONF="${PYTORCH_ALLOC_CONF-expandable_segments:True}"
run=/path/to/kochbuch/runs/olmo2_13b-full
mkdir -p "$run/ranks"

# By 3 this ends the chain, and jobs/chain.jsonl says why.
python -m cluster.begin "$run" || exit $(($? != 3))

MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

trap 'touch "$run/stop"' USR1  # 360 s before the wall: the run saves and stops
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
  # One task a rank. Network ports: TCPXO, a port a device; its own library chooses.
  srun --kill-on-bad-exit=1 --wait=60 --cpu-bind=none --output="$run/ranks/%A_%a-%N.log" --label --open-mode=append \
    --nodelist="$run/preflight/nodes" --nodes="$nodes" --ntasks=$((nodes * 8)) \
    python -m components.train "$run" &
  wait $!
  status=$?
  [ "$status" -le 128 ] || { wait $!; status=$?; }  # the signal ended the first wait, not the ranks
  return "$status"
}
launch
python -m cluster.end "$run" $?  # says what happened; its status is the job's
