#!/usr/bin/env bash
# Tests that need a GPU, then the recipes' speed on synthetic data, eager and compiled. Writes to $OUT.
#   OUT=results bash benchmarks/recipes_on_gpu.sh
set -u
OUT=${OUT:?a folder for the results}
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
dt="python3 -m drivetrain"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit --format=csv,noheader
timeout 240 python3 -m pytest -q -m gpu -p no:cacheprovider tests/gpu tests/unit/telemetry 2>&1 | tail -25
timeout 100 $dt train recipes/digits.yaml --output /tmp/digits > "$OUT/digits.log" 2>&1; tail -20 "$OUT/digits.log"
speed() {  # speed NAME RECIPE ARGS...
  local name=$1; shift
  timeout 150 $dt train "$@" --data.kind synthetic --nproc-per-node 1 --output "/tmp/$name" \
    --checkpoint.every-epochs null --checkpoint.every-minutes null > "$OUT/$name.log" 2>&1
  echo "== $name: exit $?"; grep -E "^speed|of a step|^input" -A1 "$OUT/$name.log"
}
speed resnet50-eager recipes/resnet50.yaml --global-batch 256 --max-steps 200 --no-compile
speed resnet50-compiled recipes/resnet50.yaml --global-batch 256 --max-steps 300 --compile
speed vit-eager recipes/vit_b16.yaml --global-batch 256 --max-steps 100 --no-compile
speed vit-compiled recipes/vit_b16.yaml --global-batch 256 --max-steps 150 --compile
