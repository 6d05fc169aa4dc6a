#!/usr/bin/env bash
# Embeds images and sentences: train_vse.sh DATA SAVE_DIR [ARCH] [options of fairseq-train]
set -euo pipefail
if [ $# -lt 2 ] || [[ "${3:-}" == -* ]]; then sed -n 2p "$0" >&2; exit 2; fi
source "$(dirname "$0")/../gpus.sh"
share_batch 128 pairs
updates=3525  # 15 epochs of Flickr8k
exec fairseq-train "$1" --user-dir "$(dirname "$0")/../../fairseq_mm" \
    --task multimodal_captioning --arch "${3:-vse_lstm}" --criterion pairwise_ranking \
    --feature-scaling root --feature-dropout 0.2 --word-dropout 0.3 \
    --optimizer adam --lr 1e-3 --lr-scheduler polynomial_decay \
    --total-num-update $updates --max-update $updates --clip-norm 2 \
    --batch-size "$BATCH" "${PROCESSES[@]}" --required-batch-size-multiple 1 --preload-features --num-workers 0 \
    --best-checkpoint-metric rsum --maximize-best-checkpoint-metric \
    --no-epoch-checkpoints --seed 1 --log-format simple --save-dir "$2" "${@:4}"
