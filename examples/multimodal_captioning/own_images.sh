#!/usr/bin/env bash
# From captions of your own images to models in use: own_images.sh CAPTIONS OUT [PHOTOS] [variables UPDATES=N, WEIGHTS=FILE]
# CAPTIONS: {"image": "1.jpg", "captions": ["A dog runs .", ...]} a line; a tenth of the images are
# for validation, unless lines have "split". PHOTOS: folder to search (default: the smallest folder
# that has all images of CAPTIONS).
# Run it again to continue after an interruption. UPDATES: number of updates of both trainings.
# WEIGHTS: state dict of mobilenet_v2 (default: torchvision's, downloaded).
set -euo pipefail
if [ $# != 2 ] && [ $# != 3 ]; then sed -n 2p "$0" >&2; exit 2; fi
captions=$1 out=$2 photos=${3:-}
source "$(dirname "$0")/steps.sh"
begin_own "$captions" captions
prepare() {
    local count options
    set_apart "$captions"
    # in small data, most words are rare
    if [ "$count" -lt 1000 ]; then options+=(--threshold 2); fi
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
# the lines have been read by extract, so they are JSON
photos=${photos:-$(python3 -c '
import json, os, sys
folder = os.path.dirname(sys.argv[1])
lines = [x for x in open(sys.argv[1], encoding="utf-8") if x.strip()]
images = [os.path.abspath(os.path.join(folder, json.loads(x)["image"])) for x in lines]
print(os.path.relpath(os.path.commonpath([os.path.dirname(x) for x in images])))' "$captions")}
train_to_page "$updates" "$updates" "$(dirname "$captions")"
