#!/usr/bin/env bash
# Trains a caption model for CIDEr-D: train_self_critical.sh DATA SAVE_DIR CHECKPOINT [options of fairseq-train]
set -euo pipefail
if [ $# -lt 3 ] || [[ "$3" == -* ]]; then sed -n 2p "$0" >&2; exit 2; fi
if [ ! -e "$3" ]; then echo "$3: no such checkpoint." >&2; exit 2; fi
source "$(dirname "$0")/../gpus.sh"
share_batch 64 images
updates=940  # 10 epochs of the images of Flickr8k
[ -e "$1/train.document_frequencies.npz" ] || fairseq-mm frequencies "$1"
# the architecture, as fairseq takes none from --finetune-from-model
arch=$(python -c 'import sys, torch; c = torch.load(sys.argv[1], "cpu", weights_only=False); print(c["cfg"]["model"]._name)' "$3")
exec fairseq-train "$1" --user-dir "$(dirname "$0")/../../fairseq_mm" \
    --task multimodal_captioning --arch "$arch" --criterion self_critical \
    --finetune-from-model "$3" --one-per-item \
    --optimizer adam --lr 5e-5 --max-update $updates --clip-norm 5 \
    --batch-size "$BATCH" "${PROCESSES[@]}" --required-batch-size-multiple 1 \
    --eval-gen --best-checkpoint-metric cider --maximize-best-checkpoint-metric \
    --no-epoch-checkpoints --seed 1 --log-format simple --save-dir "$2" "${@:4}"
