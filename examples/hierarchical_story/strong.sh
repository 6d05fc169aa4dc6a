#!/usr/bin/env bash
# The strongest rung of the paper: strong.sh DATA OUT [options of fairseq-train] [variable SIZE=small]
# Trains conv_story_gated, then conv_story_fusion on it, tells stories of the prompts of the validation
# split, and scores them. Run it again to continue after an interruption.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n 2p "$0" >&2; exit 2; fi
data=$1 out=$2 total=3
recipes=$(dirname "$0")
source "$recipes/../steps.sh"
begin "$(realpath -m "$data")" "SIZE=${SIZE:-}" "${@:3}"

step "train conv_story_gated" "$recipes/2_train_seq2seq.sh" "$data" "$out/conv_story_gated" \
    conv_story_gated "${@:3}"
step "train conv_story_fusion" "$recipes/3_train_fusion.sh" "$data" "$out/conv_story_fusion" \
    "$out/conv_story_gated/checkpoint_best.pt" "${@:3}"
step "tell and score" "$recipes/5_tell_and_score.sh" "$data" "$out/stories" \
    "$out/conv_story_fusion" valid
