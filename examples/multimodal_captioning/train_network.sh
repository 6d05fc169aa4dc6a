#!/usr/bin/env bash
# Trains a checkpoint on together with the image network of its features: train_network.sh DATA PHOTOS SAVE_DIR CHECKPOINT ARCH [options of fairseq-train] [variable WEIGHTS=FILE]
# DATA: the data folder of the checkpoint, whose features.h5 was extracted from PHOTOS.
# WEIGHTS: weights of the network (default: mobilenet_v2.pt beside the checkpoint, or else the
# published weights that features.h5 names).
# Writes the best model and its network to SAVE_DIR/separated, for fairseq-mm extract and caption. The
# folder of an earlier run becomes SAVE_DIR/separated.old.
set -euo pipefail
if [ $# -lt 5 ] || [[ "$5" == -* ]]; then sed -n 2p "$0" >&2; exit 2; fi
data=$1 photos=$2 out=$3 checkpoint=$4 arch=$5
source "$(dirname "$0")/../gpus.sh"
weights=${WEIGHTS:-}
if [ -z "$weights" ] && [ -e "$(dirname "$checkpoint")/mobilenet_v2.pt" ]; then
    weights=$(dirname "$checkpoint")/mobilenet_v2.pt
fi
network=()
if [ -n "$weights" ]; then network=(--image-network "$weights"); fi
case "$arch" in
vse*)
    # as train_vse.sh builds the model
    share_batch 640 pairs
    updates=376  # 8 epochs of Flickr8k
    SETTINGS=(--feature-scaling root --feature-dropout 0.2 --word-dropout 0.3
        --criterion pairwise_ranking --loss info_nce --best-checkpoint-metric rsum
        --warmup-updates 20 --clip-norm 2) ;;
*)
    share_batch 320 pairs
    updates=564  # 6 epochs of Flickr8k
    SETTINGS=(--criterion label_smoothed_cross_entropy --label-smoothing 0.1
        --adam-betas '(0.9, 0.98)' --weight-decay 1e-4
        --eval-gen --best-checkpoint-metric cider --warmup-updates 30 --clip-norm 1) ;;
esac
# The first modules of mobilenet_v2 take most of the time of a pass, and their filters fit any image.
fairseq-train "$data" --user-dir "$(dirname "$0")/../../fairseq_mm" \
    --task multimodal_captioning --arch "$arch" "${SETTINGS[@]}" --maximize-best-checkpoint-metric \
    --photos "$photos" "${network[@]}" \
    --network-first-layer features.7 --network-lr-scale 0.33 --flip-photos \
    --finetune-from-model "$checkpoint" \
    --optimizer adam --lr 3e-4 --lr-scheduler polynomial_decay \
    --total-num-update $updates --max-update $updates --validate-interval 2 \
    --batch-size "$BATCH" "${PROCESSES[@]}" --required-batch-size-multiple 1 \
    --preload-features --num-workers 0 \
    --no-epoch-checkpoints --seed 1 --log-format simple --save-dir "$out" "${@:6}"
if [ -e "$out/separated" ]; then
    rm -rf "$out/separated.old"
    mv "$out/separated" "$out/separated.old"
fi
exec fairseq-mm export "$out" "$out/separated" --separate-network
