#!/usr/bin/env bash
# A rung of Table 2: conv_story, conv_story_self_att, conv_story_multihead, conv_story_multiscale or
# conv_story_gated.
# Usage: 2_train_seq2seq.sh DATA SAVE_DIR [ARCH] [options of fairseq-train ...]
set -euo pipefail
source "$(dirname "$0")/sizes.sh"
DATA=$1 SAVE=$2 ARCH=${3:-conv_story_gated}

fairseq-train "$DATA" "${COMMON[@]}" --task hierarchical_story --arch "$ARCH" "${STORY[@]}" \
    "${OPTIMIZATION[@]}" --save-dir "$SAVE" "${@:4}"
