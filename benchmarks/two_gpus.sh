#!/usr/bin/env bash
# Two GPUs of one host over NCCL: the GPU tests, digits on both, ResNet-50 on one and on both. Writes to $OUT.
#   OUT=results bash benchmarks/two_gpus.sh
set -u
OUT=${OUT:?a folder for the results}
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
dt="python3 -m drivetrain"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit --format=csv,noheader
timeout 200 python3 -m pytest -q -m gpu -p no:cacheprovider tests/gpu tests/unit/telemetry tests/unit/data 2>&1 | tail -25
timeout 80 $dt train recipes/digits.yaml --output /tmp/digits > "$OUT/digits.log" 2>&1; grep -E "^result|^speed|of a step" -A1 "$OUT/digits.log"
for gpus in 1 2; do
  timeout 120 $dt train recipes/resnet50.yaml --data.kind synthetic --nproc-per-node $gpus --output "/tmp/resnet50-$gpus" \
    --global-batch $((256 * gpus)) --max-steps 250 --compile --checkpoint.every-epochs null --checkpoint.every-minutes null \
    > "$OUT/resnet50-$gpus.log" 2>&1
  echo "== resnet50 compiled on $gpus: exit $?"; grep -E "^speed|of a step" -A1 "$OUT/resnet50-$gpus.log"
done
