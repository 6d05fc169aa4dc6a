#!/usr/bin/env bash
# A second model on top of a trained one, which stays fixed (sections 3.4 and 9.4).
# Usage: 3_train_fusion.sh DATA SAVE_DIR TRAINED_CHECKPOINT [options of fairseq-train ...]
set -euo pipefail
source "$(dirname "$0")/sizes.sh"
DATA=$1 SAVE=$2 TRAINED=$3

fairseq-train "$DATA" "${COMMON[@]}" --task hierarchical_story --arch conv_story_fusion \
    --pretrained-checkpoint "$TRAINED" "${FUSION[@]}" "${OPTIMIZATION[@]}" --save-dir "$SAVE" \
    "${@:4}"
