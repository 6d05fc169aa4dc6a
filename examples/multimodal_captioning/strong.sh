#!/usr/bin/env bash
# Captions from grids of features: strong.sh DATA PHOTOS OUT [options of fairseq-train] [variables UPDATES=N, CRITICAL_UPDATES=N, WEIGHTS=FILE]
# DATA: a folder of `fairseq-mm prepare flickr8k` or `prepare captions`. Extracts a grid of features of
# every image, trains transformer_captioner by cross-entropy, captions and scores the validation images.
# Run it again to continue after an interruption. UPDATES: number of updates.
# CRITICAL_UPDATES: number of updates of a second training, for CIDEr-D (default: none; 600 are 3
# epochs of Flickr8k).
# WEIGHTS: state dict of mobilenet_v2 (default: torchvision's, downloaded).
set -euo pipefail
if [ $# -lt 3 ]; then sed -n 2p "$0" >&2; exit 2; fi
text=$1 photos=$2 out=$3 options=("${@:4}")
source "$(dirname "$0")/steps.sh"
critical=${CRITICAL_UPDATES:-} last_model=transformer_captioner
total=$((${#critical} ? 5 : 3))
if [ -n "$critical" ] && ! [[ "$critical" =~ ^[1-9][0-9]*$ ]]; then
    echo "CRITICAL_UPDATES must be a number of 1 or more, but is $critical." >&2
    exit 2
fi
if [ ! -e "$text/train.visual_ids" ]; then
    echo "$text: no prepared data folder: it has no train.visual_ids." >&2
    exit 2
fi
begin "$(realpath -m "$text")" "$(realpath -m "$photos")" "${options[@]}" "${variables[@]}"
extract() {
    mkdir -p "$data"
    # the folder's own text with other features
    cp "$text"/dict.txt "$text"/*.bin "$text"/*.idx "$text"/*.visual_ids \
        "$text"/*.references.jsonl "$data"
    fairseq-mm extract "$photos" --model mobilenet_v2 --grid --resize squash --crop none \
        "${weights[@]}" --output "$data/features.h5"
}
train_critically() {
    mkdir -p "$out/self_critical"
    if [ -n "${WEIGHTS:-}" ]; then cp "$WEIGHTS" "$out/self_critical/mobilenet_v2.pt"; fi
    "$recipes/train_self_critical.sh" "$data" "$out/self_critical" \
        "$out/transformer_captioner/checkpoint_best.pt" --arch transformer_captioner \
        --lr 5e-5 --total-num-update "$critical" --max-update "$critical" \
        --preload-features --num-workers 0 "${options[@]}" 2>&1 | tee -a "$out/self_critical/train.log"
}
describe() {
    fairseq-mm caption "$data" --split valid --checkpoint "$out/$1" --beam 3 --jsonl \
        --output "$out/$1/captions.jsonl"
    fairseq-mm score "$out/$1/captions.jsonl" --data "$data" --split valid \
        --metrics bleu,rouge_l,cider,novelty,diversity,seq_rep --json "$out/$1/scores.json"
    fairseq-mm perplexity "$data" --checkpoint "$out/$1" --split valid
}
step extract extract
step "train transformer_captioner" train train_transformer.sh transformer_captioner 2820 \
    --validate-interval 3 "${options[@]}"
step "score transformer_captioner" describe transformer_captioner
if [ -n "$critical" ]; then
    last_model=self_critical
    step "train self_critical" train_critically
    step "score self_critical" describe self_critical
fi
cat <<END

Caption an image:  fairseq-mm caption photo.jpg --checkpoint $(printf %q "$out/$last_model")
END
