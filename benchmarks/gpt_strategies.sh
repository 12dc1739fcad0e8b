#!/usr/bin/env bash
# The 1.3 B GPT recipe under each strategy that one GPU can show, eager and compiled, 50 steps each. Writes to $OUT.
#   OUT=results bash benchmarks/gpt_strategies.sh
set -u
OUT=${OUT:?a folder for the results}
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit --format=csv,noheader
for strategy in single fsdp; do
  for compile in --no-compile --compile; do
    name=gpt_1b-$strategy$compile
    timeout 150 python3 -m drivetrain train recipes/gpt_1b.yaml --strategy $strategy $compile --nproc-per-node 1 \
      --global-batch "${BATCH:-16}" --max-steps 50 --output "/tmp/$name" --log-every-steps 1 \
      --checkpoint.every-epochs null --evaluate.every-epochs null --data.val-fraction 0.01 > "$OUT/$name.log" 2>&1 &
    run=$!; peak=0
    while kill -0 $run 2>/dev/null; do
      used=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | head -1)
      [ "${used:-0}" -gt $peak ] && peak=$used
      sleep 0.5
    done
    wait $run; echo "== $name: exit $?, peak $peak MiB"
    grep -E "^speed|of a step" -A1 "$OUT/$name.log"
    python3 - "/tmp/$name/events/rank-00000.jsonl" <<'PY'
import json, sys
steps = [event for event in map(json.loads, open(sys.argv[1])) if event["kind"] == "step"]
print("loss at steps 1, 10, 25, 50:", *(round(steps[i - 1]["loss"], 4) for i in (1, 10, 25, 50) if len(steps) >= i))
PY
    rm -rf "/tmp/$name"
  done
done
