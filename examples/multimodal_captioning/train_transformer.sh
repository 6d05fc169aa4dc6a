#!/usr/bin/env bash
# Trains the transformer over a grid, or another --arch: train_transformer.sh DATA SAVE_DIR [ARCH] [options of fairseq-train]
set -euo pipefail
if [ $# -lt 2 ] || [[ "${3:-}" == -* ]]; then sed -n 2p "$0" >&2; exit 2; fi
source "$(dirname "$0")/../gpus.sh"
share_batch 128 pairs
updates=2820  # 12 epochs of Flickr8k
exec fairseq-train "$1" --user-dir "$(dirname "$0")/../../fairseq_mm" \
    --task multimodal_captioning --arch "${3:-transformer_captioner}" \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
    --optimizer adam --adam-betas '(0.9, 0.98)' --weight-decay 1e-4 --lr 1e-3 \
    --lr-scheduler polynomial_decay --warmup-updates 235 \
    --total-num-update $updates --max-update $updates --clip-norm 1 \
    --batch-size "$BATCH" "${PROCESSES[@]}" --required-batch-size-multiple 1 \
    --preload-features --num-workers 0 \
    --eval-gen --best-checkpoint-metric cider --maximize-best-checkpoint-metric \
    --no-epoch-checkpoints --seed 1 --log-format simple --save-dir "$2" "${@:4}"
