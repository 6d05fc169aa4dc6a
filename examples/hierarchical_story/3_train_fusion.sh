#!/usr/bin/env bash
# Fusion: 3_train_fusion.sh DATA SAVE_DIR TRAINED_CHECKPOINT [options of fairseq-train]
# A second model on top of a trained one, which stays fixed (sections 3.4 and 9.4).
set -euo pipefail
if [ $# -lt 3 ]; then sed -n 2p "$0" >&2; exit 2; fi
source "$(dirname "$0")/sizes.sh"

exec fairseq-train "$1" "${COMMON[@]}" --task hierarchical_story --arch conv_story_fusion \
    --pretrained-checkpoint "$3" "${FUSION[@]}" "${OPTIMIZATION[@]}" --save-dir "$2" "${@:4}"
