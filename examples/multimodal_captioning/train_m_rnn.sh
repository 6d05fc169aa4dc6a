#!/usr/bin/env bash
# Trains m-RNN, or another --arch: train_m_rnn.sh DATA SAVE_DIR [ARCH] [options of fairseq-train]
set -euo pipefail
if [ $# -lt 2 ] || [[ "${3:-}" == -* ]]; then sed -n 2p "$0" >&2; exit 2; fi
source "$(dirname "$0")/../gpus.sh"
share_batch 128 pairs
updates=4700  # 20 epochs of Flickr8k
exec fairseq-train "$1" --user-dir "$(dirname "$0")/../../fairseq_mm" \
    --task multimodal_captioning --arch "${3:-m_rnn}" --criterion cross_entropy \
    --optimizer adam --lr 1e-3 --lr-scheduler polynomial_decay \
    --total-num-update $updates --max-update $updates --clip-norm 5 \
    --batch-size "$BATCH" "${PROCESSES[@]}" --required-batch-size-multiple 1 \
    --eval-gen --best-checkpoint-metric cider --maximize-best-checkpoint-metric \
    --no-epoch-checkpoints --seed 1 --log-format simple --save-dir "$2" "${@:4}"
