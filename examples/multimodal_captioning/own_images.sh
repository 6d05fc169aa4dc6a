#!/usr/bin/env bash
# From captions of your own images to models in use: own_images.sh CAPTIONS OUT [PHOTOS] [variables UPDATES=N, WEIGHTS=FILE]
# CAPTIONS: {"image": "1.jpg", "captions": ["A dog runs .", ...]} a line; a tenth of the images are
# for validation, unless lines have "split". PHOTOS: folder to search (default: the folder of
# CAPTIONS).
# Run it again to continue after an interruption. UPDATES: number of updates of both trainings.
# WEIGHTS: state dict of mobilenet_v2 (default: torchvision's, downloaded).
set -euo pipefail
if [ $# != 2 ] && [ $# != 3 ]; then sed -n 2p "$0" >&2; exit 2; fi
captions=$1 out=$2 photos=${3:-$(dirname "$1")}
source "$(dirname "$0")/steps.sh"
if [ ! -f "$captions" ]; then
    echo "$captions: no such file." >&2
    exit 2
fi
begin "captions of checksum $(cksum < "$captions")" "${variables[@]}"
prepare() {
    local images options=()
    images=$(grep -c . "$captions")
    if ! grep -q '"split"' "$captions"; then
        options+=(--valid-size $((images < 10 ? 1 : images < 10000 ? images / 10 : 1000)))
    fi
    # in small data, most words are rare
    if [ "$images" -lt 1000 ]; then options+=(--threshold 2); fi
    fairseq-mm prepare captions "$captions" --keys path --features "$data/features.h5" \
        --missing drop "${options[@]}" --output "$data"
}
mkdir -p "$data"
step extract fairseq-mm extract "$captions" --ids path --model mobilenet_v2 --resize squash \
    --crop none "${weights[@]}" --overwrite --output "$data/features.h5"
step prepare prepare
# 20 epochs in batches of 128, but no fewer than 500 updates and no more than of Flickr8k
captions_count=$(grep -om 1 '"captions": [0-9]*' "$data/prepare.json")
updates=$((20 * ${captions_count#*: } / 128))
updates=$((updates < 500 ? 500 : updates > 4700 ? 4700 : updates))
train_to_page "$updates" "$updates" "$(dirname "$captions")"
