#!/usr/bin/env bash
# Trains a checkpoint on together with the image network of its features: train_network.sh DATA PHOTOS SAVE_DIR CHECKPOINT ARCH [options of fairseq-train] [variable WEIGHTS=FILE]
# DATA: the data folder of the checkpoint, whose features.h5 was extracted from PHOTOS.
# WEIGHTS: weights of the network (default: mobilenet_v2.pt beside the checkpoint).
# Writes the best model and its network to SAVE_DIR/separated, for fairseq-mm extract and caption.
set -euo pipefail
if [ $# -lt 5 ] || [[ "$5" == -* ]]; then sed -n 2p "$0" >&2; exit 2; fi
data=$1 photos=$2 out=$3 checkpoint=$4 arch=$5
source "$(dirname "$0")/../gpus.sh"
share_batch 64 pairs
updates=1400  # 3 epochs of Flickr8k
case "$arch" in
vse*)
    # as train_vse.sh builds the model
    SETTINGS=(--feature-scaling root --feature-dropout 0.2 --word-dropout 0.3
        --criterion pairwise_ranking --loss info_nce --best-checkpoint-metric rsum) ;;
*)
    SETTINGS=(--criterion cross_entropy --eval-gen --best-checkpoint-metric cider) ;;
esac
fairseq-train "$data" --user-dir "$(dirname "$0")/../../fairseq_mm" \
    --task multimodal_captioning --arch "$arch" "${SETTINGS[@]}" --maximize-best-checkpoint-metric \
    --photos "$photos" --image-network "${WEIGHTS:-$(dirname "$checkpoint")/mobilenet_v2.pt}" \
    --network-lr-scale 0.1 --network-update-after 100 --flip-photos \
    --finetune-from-model "$checkpoint" \
    --optimizer adam --lr 3e-4 --lr-scheduler polynomial_decay --warmup-updates 100 \
    --total-num-update $updates --max-update $updates --clip-norm 5 \
    --batch-size "$BATCH" "${PROCESSES[@]}" --required-batch-size-multiple 1 \
    --no-epoch-checkpoints --seed 1 --log-format simple --save-dir "$out" "${@:6}"
exec fairseq-mm export "$out" "$out/separated" --separate-network
