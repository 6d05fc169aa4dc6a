#!/usr/bin/env bash
# From your own videos with transcripts to a model, scores and a page: own_videos.sh VIDEOS OUT [variables UPDATES=N, WEIGHTS=FILE]
# VIDEOS: {"video": "1.mp4", "transcript": text or "1.srt", "summary": "..."} a line; a tenth of the
# videos are for validation, unless lines have "split". Run it again to continue after an interruption.
# UPDATES: number of updates. WEIGHTS: state dict of r3d_18, or none for random weights (default:
# torchvision's, downloaded).
set -euo pipefail
if [ $# != 2 ]; then sed -n 2p "$0" >&2; exit 2; fi
videos=$1 out=$2 total=6
data=$out/data model=$out/mffg_rnn
recipes=$(dirname "$0")
source "$recipes/../steps.sh"
begin_own "$videos" videos
prepare() {
    local count options
    set_apart "$videos"
    fairseq-mm prepare videos "$videos" "${options[@]}" --output "$data"
}
train() {
    mkdir -p "$model"
    # commands look for the extractor's weights beside the checkpoint
    if [ -f "${WEIGHTS:-}" ]; then cp "$WEIGHTS" "$model/r3d_18.pt"; fi
    "$recipes/1_train.sh" "$data" "$model" mffg_rnn "${limit[@]}" 2>&1 \
        | tee -i -a "$model/train.log"
}
mkdir -p "$data"
step extract fairseq-mm extract "$videos" --model r3d_18 "${weights[@]}" --overwrite \
    --output "$data/features.h5"
step prepare prepare
step train train
step summarize fairseq-mm summarize "$data" --split valid --checkpoint "$model" --jsonl \
    --output "$out/summaries.jsonl"
step score fairseq-mm score "$out/summaries.jsonl" --data "$data" --split valid --preset how2 \
    --metrics rouge,bleu,cider --json "$out/scores.json" --per-item "$out/scores.jsonl"
step page fairseq-mm report --data "$data" --split valid --hypotheses "$out/summaries.jsonl" \
    --scores "$out/scores.jsonl" --metrics rouge,cider --title "Summaries of the validation videos" \
    --output "$out/page.html"
cat <<END

Summarize a video:      fairseq-mm summarize lesson.mp4 --transcript lesson.srt --checkpoint $(printf %q "$model")
Look at the summaries:  open $(printf %q "$out/page.html") in a browser
END
