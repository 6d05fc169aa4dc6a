#!/usr/bin/env bash
# Captions, scores and retrieval: generate_and_score.sh DATA SAVE_DIR [SPLIT] [options of fairseq-mm score]
set -euo pipefail
if [ $# -lt 2 ]; then sed -n 2p "$0" >&2; exit 2; fi
data=$1 out=$2 split=${3:-valid}
generate() {
    fairseq-generate "$data" --user-dir "$(dirname "$0")/../../fairseq_mm" \
        --task multimodal_captioning --path "$out/checkpoint_best.pt" --gen-subset "$split" \
        --batch-size 100 "$@"
}
generate --score-reference --all-lines > "$out/reference-$split.txt"
generate --beam 1 > "$out/greedy-$split.txt"
generate --beam 3 > "$out/beam-$split.txt"
for decoding in greedy beam; do
    echo "$decoding:"
    fairseq-mm score "$out/$decoding-$split.txt" --data "$data" --split "$split" \
        --metrics bleu,meteor,rouge_l,cider,perplexity,novelty,diversity \
        --reference-scores "$out/reference-$split.txt" \
        --per-item "$out/$decoding-$split.jsonl" --json "$out/$decoding-$split.json" "${@:4}"
done
fairseq-mm rank "$data" --checkpoint "$out" --split "$split" --marginal-images "${MARGINAL_IMAGES:-100}"
