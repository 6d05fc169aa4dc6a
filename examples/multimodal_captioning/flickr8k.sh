#!/usr/bin/env bash
# From the release of Flickr8k to models in use: flickr8k.sh FLICKR8K PHOTOS OUT [variables UPDATES=N, WEIGHTS=FILE]
# Run it again to continue after an interruption. UPDATES: number of updates of both trainings.
# WEIGHTS: state dict of mobilenet_v2 (default: torchvision's, downloaded).
set -euo pipefail
if [ $# != 3 ]; then sed -n 2p "$0" >&2; exit 2; fi
photos=$2 out=$3
source "$(dirname "$0")/steps.sh"
begin "$(realpath -m "$1")" "$(realpath -m "$photos")" "${variables[@]}"
echo "$total steps: prepare, extract, train m_rnn, train vse_bow, caption, score, page, index"
if [ -z "${UPDATES:-}" ]; then
    echo "On two cores, they took 16 minutes with images of 224 x 224 pixels (extract takes longer if" \
        "images are larger)."
    echo "The longest step is train m_rnn; train vse_bow takes less than two minutes."
fi
step prepare fairseq-mm prepare flickr8k "$1" --output "$data"
extract() {
    local missing
    missing=$(grep -ho '^{"id": "[^"]*' "$data"/*.jsonl | cut -d '"' -f 4 | sort -u \
        | comm -23 - <(find -L "$photos" -printf '%f\n' | sort))
    if [ -n "$missing" ]; then
        missing="$(wc -l <<< "$missing"), such as ${missing%%$'\n'*}"
        echo "$photos: images of the release are missing: $missing." >&2
        exit 2
    fi
    fairseq-mm extract "$photos" --model mobilenet_v2 --resize squash --crop none \
        "${weights[@]}" --overwrite --output "$data/features.h5"
}
step extract extract
train_to_page 4700 3525 "$photos"  # 20 and 15 epochs
