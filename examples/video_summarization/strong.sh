#!/usr/bin/env bash
# The best system of the paper: strong.sh DATA OUT [options of fairseq-train] with PRETRAINED=FOLDER/model.pt
# Trains vg_bart_dot_product_fg_vtf from a pretrained BART, summarizes the validation split, and scores
# the summaries. Run it again to continue after an interruption.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n 2p "$0" >&2; exit 2; fi
data=$1 out=$2 total=2
recipes=$(dirname "$0")
source "$recipes/../steps.sh"
begin "$(realpath -m "$data")" "PRETRAINED=${PRETRAINED:-}" "${@:3}"

step train "$recipes/1_train.sh" "$data" "$out/vg_bart" vg_bart_dot_product_fg_vtf "${@:3}"
step "summarize and score" "$recipes/2_summarize_and_score.sh" "$data" "$out/summaries" \
    "$out/vg_bart/checkpoint_best.pt" valid
