#!/usr/bin/env bash
# What drivetrain says of a machine with GPUs, beside what nvidia-smi says; the GPU tests; parity. Writes to $OUT.
#   OUT=results bash benchmarks/machine_on_gpu.sh
set -u
OUT=${OUT:?a folder for the results}
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
dt="python3 -m drivetrain"
nvidia-smi > "$OUT/nvidia-smi.txt" 2>&1
nvidia-smi topo -m > "$OUT/nvidia-smi-topo.txt" 2>&1
nvidia-smi -q > "$OUT/nvidia-smi-q.txt" 2>&1
timeout 30 $dt gpus list > "$OUT/gpus-list.txt" 2>&1; echo "gpus list: $?"
timeout 40 $dt topo -k 2 > "$OUT/topo.txt" 2>&1; echo "topo: $?"
timeout 40 $dt topo --json -k 2 > "$OUT/topo.json" 2>&1
timeout 100 $dt doctor > "$OUT/doctor.txt" 2>&1; echo "doctor: $?"; tail -1 "$OUT/doctor.txt"
timeout 60 $dt doctor --quick --json > "$OUT/doctor.json" 2>&1
timeout 40 $dt doctor --from "$OUT/nvidia-smi.txt" "$OUT/nvidia-smi-q.txt" > "$OUT/doctor-from.txt" 2>&1; echo "doctor --from: $?"
timeout 150 $dt parity recipes/gpt.yaml --strategies all -j 1x2 > "$OUT/parity.txt" 2>&1; echo "parity: $?"; cat "$OUT/parity.txt"
timeout 170 python3 -m pytest -q -m gpu -p no:cacheprovider tests/gpu 2>&1 | tail -30
