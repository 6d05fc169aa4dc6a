#!/usr/bin/env bash
# Stories and figures: 5_tell_and_score.sh DATA SAVE_DIR MODEL [SPLIT] [options of fairseq-mm tell]
# MODEL is a checkpoint, its folder, or a.pt:b.pt, an ensemble. STORIES=500 (default) are generated;
# prompts are ranked by DRAWS=20 (default) draws of 9 others.
set -euo pipefail
if [ $# -lt 3 ]; then sed -n 2p "$0" >&2; exit 2; fi
data=$1 out=$2 model=$3 split=${4:-valid}
mkdir -p "$out"
head -n "${STORIES:-500}" "$data/$split.jsonl" \
    | python3 -c 'import json, sys; [print(*json.loads(x)["prompt"].split()) for x in sys.stdin]' \
    > "$out/prompts.txt"

fairseq-mm perplexity "$data" --checkpoint "$model" --split "$split" --tune-temperature \
    --json "$out/perplexity.json"
fairseq-mm rank "$data" --checkpoint "$model" --split "$split" --draws "${DRAWS:-20}" \
    --output "$out/ranks"
fairseq-mm tell --checkpoint "$model" --data "$data" --prompts "$out/prompts.txt" --jsonl \
    --seed 0 --output "$out/generated.jsonl" "${@:5}"
fairseq-mm retrieve prompts "$data" --split "$split" --output "$out/nearest.jsonl"
for stories in generated nearest; do
    echo "$stories:"
    fairseq-mm score "$out/$stories.jsonl" --data "$data" --split "$split" --preset wp \
        --per-item "$out/$stories.copied.jsonl" --json "$out/$stories.json"
done
