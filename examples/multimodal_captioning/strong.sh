#!/usr/bin/env bash
# Captions from grids of features: strong.sh DATA PHOTOS OUT [options of fairseq-train] [variables UPDATES=N, NETWORK_UPDATES=N, CRITICAL_UPDATES=N, WEIGHTS=FILE]
# DATA: a folder of `fairseq-mm prepare flickr8k` or `prepare captions`. Extracts a grid of features of
# every image, trains transformer_captioner by cross-entropy, and then together with the image network;
# captions and scores the validation images after each training.
# Run it again to continue after an interruption. UPDATES: number of updates by cross-entropy.
# NETWORK_UPDATES: number of updates together with the image network (default: 564, 6 epochs of
# Flickr8k; 0: none).
# CRITICAL_UPDATES: number of updates of a second training, for CIDEr-D (default: none; 600 are 3
# epochs of Flickr8k).
# WEIGHTS: state dict of mobilenet_v2 (default: torchvision's, downloaded).
set -euo pipefail
if [ $# -lt 3 ]; then sed -n 2p "$0" >&2; exit 2; fi
text=$1 photos=$2 out=$3 options=("${@:4}")
source "$(dirname "$0")/steps.sh"
critical=${CRITICAL_UPDATES:-} network=${NETWORK_UPDATES:-564} last_model=transformer_captioner
if ! [[ "$network" =~ ^(0|[1-9][0-9]*)$ ]]; then
    echo "NETWORK_UPDATES must be a number, but is $network." >&2
    exit 2
fi
total=$((3 + (network ? 3 : 0) + (${#critical} ? 2 : 0)))
if [ -n "$critical" ] && ! [[ "$critical" =~ ^[1-9][0-9]*$ ]]; then
    echo "CRITICAL_UPDATES must be a number of 1 or more, but is $critical." >&2
    exit 2
fi
if [ ! -e "$text/train.jsonl" ]; then
    echo "$text: no prepared data folder: it has no train.jsonl." >&2
    exit 2
fi
begin "$(realpath -m "$text")" "$(realpath -m "$photos")" "${options[@]}" "${variables[@]}"
# Refuses a training that was begun with other variables: same FOLDER VARIABLES
same() {
    local begun=$out/$1/begun
    if [ -e "$begun" ] && [ "$(cat "$begun")" != "$2" ]; then
        echo "$out/$1: was begun with $(cat "$begun"), but now there is $2: name another OUT." >&2
        exit 2
    fi
}
of_network="NETWORK_UPDATES=$network"
of_critical="$of_network CRITICAL_UPDATES=$critical"
if [ "$network" != 0 ]; then same network "$of_network"; fi
if [ -n "$critical" ]; then same self_critical "$of_critical"; fi
# Extracts grids of features into a data folder: extract FOLDER [options of fairseq-mm extract]
extract() {
    mkdir -p "$1"
    # the folder's own text with other features
    cp "$text"/{dict.txt,prepare.json} "$text"/*.{bin,idx,jsonl} "$1"
    fairseq-mm extract "$photos" --model mobilenet_v2 --grid --resize squash --crop none \
        "${@:2}" --overwrite --output "$1/features.h5"
}
train_network() {
    mkdir -p "$out/network"
    echo "$of_network" > "$out/network/begun"
    "$recipes/train_network.sh" "$out/data" "$photos" "$out/network" \
        "$out/transformer_captioner/checkpoint_best.pt" transformer_captioner \
        --total-num-update "$network" --max-update "$network" "${options[@]}" 2>&1 \
        | tee -i -a "$out/network/train.log"
}
train_critically() {
    mkdir -p "$out/self_critical"
    echo "$of_critical" > "$out/self_critical/begun"
    # commands look for the extractor's weights beside the checkpoint
    if [ -e "$out/$last_model/mobilenet_v2.pt" ]; then
        cp "$out/$last_model/mobilenet_v2.pt" "$out/self_critical"
    fi
    "$recipes/train_self_critical.sh" "$data" "$out/self_critical" \
        "$out/$last_model/checkpoint_best.pt" --arch transformer_captioner \
        --lr 5e-5 --total-num-update "$critical" --max-update "$critical" \
        --preload-features --num-workers 0 "${options[@]}" 2>&1 | tee -i -a "$out/self_critical/train.log"
}
describe() {
    fairseq-mm caption "$data" --split valid --checkpoint "$out/$1" --beam 3 \
        --no-repeat-ngram-size 3 --jsonl \
        --output "$out/$1/captions.jsonl"
    fairseq-mm score "$out/$1/captions.jsonl" --data "$data" --split valid \
        --metrics bleu,rouge_l,cider,novelty,diversity,seq_rep --json "$out/$1/scores.json"
    fairseq-mm perplexity "$data" --checkpoint "$out/$1" --split valid
}
step extract extract "$data" "${weights[@]}"
step "train transformer_captioner" train train_transformer.sh transformer_captioner 2820 \
    --validate-interval 3 "${options[@]}"
step "score transformer_captioner" describe transformer_captioner
if [ "$network" != 0 ]; then
    last_model=network/separated
    step "train network" train_network
    data=$out/network_data
    step "extract again" extract "$data" --weights "$out/$last_model/mobilenet_v2.pt"
    step "score network" describe "$last_model"
fi
if [ -n "$critical" ]; then
    step "train self_critical" train_critically
    last_model=self_critical
    step "score self_critical" describe self_critical
fi
cat <<END

Caption an image:  fairseq-mm caption photo.jpg --checkpoint $(printf %q "$out/$last_model")
END
