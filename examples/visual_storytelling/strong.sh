#!/usr/bin/env bash
# Varied stories by an ensemble: strong.sh DATA OUT [options of fairseq-train] [variables SIZE=small, SEEDS=N]
# Trains transtory_decoder with SEEDS (3) seeds. For each image sequence of the validation split, the
# ensemble samples 16 stories, of which `--mbr cider` chooses the one most like the others. Run it again
# to continue after an interruption.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n 2p "$0" >&2; exit 2; fi
data=$1 out=$2 seeds=${SEEDS:-3}
recipes=$(dirname "$0")
if ! [[ "$seeds" =~ ^[1-9]$ ]]; then
    echo "SEEDS must be a number from 1 to 9, but is $seeds." >&2
    exit 2
fi
total=$((seeds + 2))
source "$recipes/../steps.sh"
begin "$(realpath -m "$data")" "SIZE=${SIZE:-}" "${@:3}"

models=
for ((seed = 1; seed <= seeds; seed++)); do
    step "train seed $seed" "$recipes/1_train.sh" "$data" "$out/seed$seed" transtory_decoder \
        --seed "$seed" "${@:3}"
    models+=${models:+:}$out/seed$seed/checkpoint_best.pt
done
tell() {
    fairseq-mm tell "$data" --split valid --checkpoint "$models" --sampling \
        --temperature 0.5 --max-words-per-sentence 25 --repetition-penalty 5 --best-of 16 \
        --mbr cider --seed 1 --jsonl --output "$out/stories.jsonl"
}
score() {
    fairseq-mm score "$out/stories.jsonl" --data "$data" --split valid --preset vist \
        --json "$out/scores.json" --per-item "$out/scores.jsonl"
    fairseq-mm perplexity "$data" --checkpoint "$models" --split valid
    fairseq-mm rank "$data" --checkpoint "$models" --split valid --draws 20 --output "$out/ranks"
}
step "tell with $seeds" tell
step "score $seeds" score
