#!/usr/bin/env bash
# A rung of Table 2: 2_train_seq2seq.sh DATA SAVE_DIR [ARCH] [options of fairseq-train]
# conv_story, conv_story_self_att, conv_story_multihead, conv_story_multiscale or conv_story_gated.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n 2p "$0" >&2; exit 2; fi
source "$(dirname "$0")/sizes.sh"

exec fairseq-train "$1" "${COMMON[@]}" --task hierarchical_story --arch "${3:-conv_story_gated}" \
    "${STORY[@]}" "${OPTIMIZATION[@]}" --save-dir "$2" "${@:4}"
