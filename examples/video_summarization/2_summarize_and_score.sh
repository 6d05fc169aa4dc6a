#!/usr/bin/env bash
# Summaries and figures: 2_summarize_and_score.sh DATA SAVE_DIR MODEL [SPLIT] [options of fairseq-generate]
# MODEL is a checkpoint, or a.pt:b.pt, an ensemble.
set -euo pipefail
if [ $# -lt 3 ]; then sed -n 2p "$0" >&2; exit 2; fi
data=$1 out=$2 model=$3 split=${4:-valid}
USER_DIR="${USER_DIR:-$(dirname "$0")/../../fairseq_mm}"
mkdir -p "$out"

fairseq-generate "$data" --user-dir "$USER_DIR" --task video_summarization --gen-subset "$split" \
    --path "$model" --batch-size 8 \
    --required-batch-size-multiple 1 "${@:5}" > "$out/generate-$split.txt"
fairseq-mm score "$out/generate-$split.txt" --data "$data" --split "$split" --preset how2 \
    --json "$out/scores.json" --per-item "$out/scores.jsonl"
