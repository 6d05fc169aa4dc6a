#!/usr/bin/env bash
# From your own stories of five images to a model, scores and a page: own_albums.sh STORIES OUT [variables UPDATES=N, WEIGHTS=FILE]
# STORIES: {"images": [5 files], "sentences": [5 sentences]} a line; a tenth of the albums are for
# validation, unless lines have "split". Run it again to continue after an interruption.
# UPDATES: number of updates. WEIGHTS: state dict of mobilenet_v2, or none for random weights (default:
# torchvision's, downloaded).
set -euo pipefail
if [ $# != 2 ]; then sed -n 2p "$0" >&2; exit 2; fi
stories=$1 out=$2 total=6
data=$out/data model=$out/transtory_decoder
recipes=$(dirname "$0")
source "$recipes/../steps.sh"
begin_own "$stories" stories
prepare() {
    local count options
    set_apart "$stories"
    # in small data, most words are rare
    if [ "$count" -lt 10000 ]; then options+=(--threshold 3); fi
    fairseq-mm prepare stories "$stories" --features "$data/features.h5" --missing drop \
        "${options[@]}" --output "$data"
}
train() {
    mkdir -p "$model"
    # commands look for the extractor's weights beside the checkpoint
    if [ -f "${WEIGHTS:-}" ]; then cp "$WEIGHTS" "$model/mobilenet_v2.pt"; fi
    SIZE=small "$recipes/1_train.sh" "$data" "$model" transtory_decoder "${limit[@]}" 2>&1 \
        | tee -i -a "$model/train.log"
}
mkdir -p "$data"
step extract fairseq-mm extract "$stories" --model mobilenet_v2 --resize squash --crop none \
    "${weights[@]}" --overwrite --output "$data/features.h5"
step prepare prepare
step train train
search="--beam 3 --max-words-per-sentence 25 --repetition-penalty 5"
step tell fairseq-mm tell "$data" --split valid --checkpoint "$model" $search \
    --jsonl --output "$out/stories.jsonl"
step score fairseq-mm score "$out/stories.jsonl" --data "$data" --split valid --preset vist \
    --json "$out/scores.json" --per-item "$out/scores.jsonl"
step page fairseq-mm report --data "$data" --split valid --images "$(dirname "$stories")" \
    --hypotheses "$out/stories.jsonl" --scores "$out/scores.jsonl" --metrics meteor_vist,cider \
    --title "Stories of the validation albums" --output "$out/page.html"
cat <<END

Tell a story:         fairseq-mm tell 1.jpg 2.jpg 3.jpg 4.jpg 5.jpg --checkpoint $(printf %q "$model") $search
Look at the stories:  open $(printf %q "$out/page.html") in a browser
END
