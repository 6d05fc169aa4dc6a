#!/usr/bin/env bash
# Trains a caption model on for CIDEr-D: train_self_critical.sh DATA SAVE_DIR CHECKPOINT [options of fairseq-train] (--arch, if not m_rnn)
set -euo pipefail
if [ $# -lt 3 ] || [[ "$3" == -* ]]; then sed -n 2p "$0" >&2; exit 2; fi
source "$(dirname "$0")/../gpus.sh"
share_batch 32 images
# 3 epochs of the images of Flickr8k; CIDEr-D was highest after the first.
updates=600
exec fairseq-train "$1" --user-dir "$(dirname "$0")/../../fairseq_mm" \
    --task multimodal_captioning --arch m_rnn --criterion self_critical \
    --finetune-from-model "$3" --one-per-item --sample-dropout \
    --optimizer adam --lr 5e-5 --lr-scheduler polynomial_decay \
    --total-num-update $updates --max-update $updates --clip-norm 5 \
    --batch-size "$BATCH" "${PROCESSES[@]}" --required-batch-size-multiple 1 \
    --eval-gen --best-checkpoint-metric cider --maximize-best-checkpoint-metric \
    --no-epoch-checkpoints --seed 1 --log-format simple --save-dir "$2" "${@:4}"
