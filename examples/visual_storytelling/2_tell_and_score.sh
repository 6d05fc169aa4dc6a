#!/usr/bin/env bash
# Stories and figures: 2_tell_and_score.sh DATA SAVE_DIR MODEL [SPLIT] [options of fairseq-generate]
# MODEL is a checkpoint, or a.pt:b.pt, an ensemble. A story's album is ranked among CANDIDATES=10
# (default), by DRAWS=20 (default) draws.
set -euo pipefail
if [ $# -lt 3 ]; then sed -n 2p "$0" >&2; exit 2; fi
data=$1 out=$2 model=$3 split=${4:-valid}
USER_DIR="${USER_DIR:-$(dirname "$0")/../../fairseq_mm}"
mkdir -p "$out"

fairseq-mm perplexity "$data" --checkpoint "$model" --split "$split" --json "$out/perplexity.json"
fairseq-mm perplexity "$data" --checkpoint "$model" --split "$split" --counting transtory
fairseq-mm perplexity "$data" --checkpoint "$model" --split "$split" --shuffled-images
fairseq-mm rank "$data" --checkpoint "$model" --split "$split" --draws "${DRAWS:-20}" \
    --candidates "${CANDIDATES:-10}" --output "$out/ranks"
fairseq-generate "$data" --user-dir "$USER_DIR" --task visual_storytelling --gen-subset "$split" \
    --path "$model" --beam 3 --max-words-per-sentence 25 --repetition-penalty 5 \
    --batch-size 32 "${@:5}" > "$out/generate-$split.txt"
fairseq-mm score "$out/generate-$split.txt" --data "$data" --split "$split" --preset vist \
    --json "$out/scores.json" --per-item "$out/scores.jsonl"
