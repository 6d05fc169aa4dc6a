#!/usr/bin/env bash
# From your own prompts and stories to a model, scores and a page: own_prompts.sh PAIRS OUT [variables UPDATES=N]
# PAIRS: {"prompt": "...", "story": "..."} a line; a tenth of the pairs are for validation, unless
# lines have "split". Run it again to continue after an interruption. UPDATES: number of updates.
set -euo pipefail
if [ $# != 2 ]; then sed -n 2p "$0" >&2; exit 2; fi
pairs=$1 out=$2 total=5
data=$out/data model=$out/conv_story_gated
recipes=$(dirname "$0")
source "$recipes/../steps.sh"
begin_own "$pairs" pairs
prepare() {
    local count options
    set_apart "$pairs"
    # in small data, most words are rare
    if [ "$count" -lt 10000 ]; then options+=(--source-threshold 2 --target-threshold 3); fi
    fairseq-mm prepare prompts "$pairs" "${options[@]}" --output "$data"
}
train() {
    mkdir -p "$model"
    SIZE=small "$recipes/2_train_seq2seq.sh" "$data" "$model" conv_story_gated \
        --truncate-source --truncate-target "${limit[@]}" 2>&1 | tee -i -a "$model/train.log"
}
score() {
    fairseq-mm score "$out/stories.jsonl" --data "$data" --split valid --preset wp \
        --json "$out/scores.json" --per-item "$out/scores.jsonl"
    fairseq-mm perplexity "$data" --checkpoint "$model" --split valid
}
step prepare prepare
step train train
step tell fairseq-mm tell "$data" --split valid --checkpoint "$model" --jsonl \
    --output "$out/stories.jsonl"
step score score
step page fairseq-mm report --data "$data" --split valid --hypotheses "$out/stories.jsonl" \
    --scores "$out/scores.jsonl" --title "Stories of the validation prompts" \
    --output "$out/page.html"
cat <<END

Tell a story:         fairseq-mm tell --prompt "The last dragon opens a bakery." --checkpoint $(printf %q "$model")
Look at the stories:  open $(printf %q "$out/page.html") in a browser
END
