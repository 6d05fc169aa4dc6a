#!/usr/bin/env bash
# Trains a model of visual stories: 1_train.sh DATA SAVE_DIR ARCH [options of fairseq-train]
# glac, glac_non_local, glac_decoder_attention, transtory_decoder, transtory_full or transtory_xl.
set -euo pipefail
if [ $# -lt 3 ]; then sed -n 2p "$0" >&2; exit 2; fi
ARCH=$3
source "$(dirname "$0")/sizes.sh"

exec fairseq-train "$1" --user-dir "$USER_DIR" --task visual_storytelling --arch "$ARCH" "${SIZES[@]}" \
    --criterion cross_entropy "${OPTIMIZATION[@]}" --required-batch-size-multiple 1 \
    --no-epoch-checkpoints --log-format simple --save-dir "$2" "${@:4}"
