#!/usr/bin/env bash
# A training on one or several nodes. Run the same line on every node:
#   NODES=2 GPUS=4 MASTER=host-of-one-of-them:29500 configs/hardware/torchrun.sh \
#     --config configs/gsm8k.yaml --config configs/hardware/multi_node.yaml
# On one node the defaults are enough. An interrupted run resumes from its last checkpoint; with RESTARTS=3
# automatically, up to three times, when a process is lost.
set -euo pipefail
cd "$(dirname "$0")/../.."
NODES="${NODES:-1}"
GPUS="${GPUS:-4}"
MASTER="${MASTER:-localhost:29500}"
# Without it every process takes all cores.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"
# With one store for all restarts, an early process would find the addresses of lost ones.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
exec python -m torch.distributed.run \
  --nnodes "$NODES" --nproc-per-node "$GPUS" \
  --max-restarts "${RESTARTS:-0}" \
  --rdzv-backend c10d --rdzv-endpoint "$MASTER" --rdzv-id "${RUN_ID:-svr}" \
  -m svr_lightning fit "$@" \
  --trainer.num_nodes "$NODES" --trainer.devices "$GPUS" --ckpt_path last
