#!/usr/bin/env bash
# Embeds images and sentences: train_vse.sh DATA SAVE_DIR [ARCH] [options of fairseq-train]
# PAPER=1: trains as Kiros et al. 2014 say that they did; by default as was found best on Flickr8k.
set -euo pipefail
if [ $# -lt 2 ] || [[ "${3:-}" == -* ]]; then sed -n 2p "$0" >&2; exit 2; fi
source "$(dirname "$0")/../gpus.sh"
case "${PAPER:-}" in
1)
    # Section 3.1: SGD without momentum at a rate of 1 "exponentially decreased", 40 pairs (Flickr30k:
    # 100); a margin of .2 and the LSTM's initial values are defaults. Section 2.2: contrastive terms
    # drawn from the training set. fairseq takes the mean over the pairs, where equation 6 is a sum:
    # if the rate is meant for the sum, --lr 40. The text is not preprocessed: see the page of the
    # task. Nothing is said of clipping, dropout or scaling: none. Ours: the
    # factor of the rate, the number of contrastive terms, 15 epochs, the choice of the checkpoint.
    # Footnote 3, fixed CBOW vectors: give --word-vectors FILE --fixed-words.
    share_batch 40 pairs
    SETTINGS=(--negatives random --num-negatives 50 --feature-scaling none
        --optimizer sgd --lr 1 --lr-scheduler epoch_decay --decay-factor 0.9 --decay-epochs 1
        --max-epoch 15 --clip-norm 0)
    ;;
"")
    share_batch 128 pairs
    updates=3525  # 15 epochs of Flickr8k
    SETTINGS=(--feature-scaling root --feature-dropout 0.2 --word-dropout 0.3
        --optimizer adam --lr 1e-3 --lr-scheduler polynomial_decay
        --total-num-update $updates --max-update $updates --clip-norm 2)
    ;;
*) echo "PAPER must be 1 or unset, but is $PAPER." >&2; exit 2 ;;
esac
exec fairseq-train "$1" --user-dir "$(dirname "$0")/../../fairseq_mm" \
    --task multimodal_captioning --arch "${3:-vse_lstm}" --criterion pairwise_ranking \
    "${SETTINGS[@]}" \
    --batch-size "$BATCH" "${PROCESSES[@]}" --required-batch-size-multiple 1 --preload-features --num-workers 0 \
    --best-checkpoint-metric rsum --maximize-best-checkpoint-metric \
    --no-epoch-checkpoints --seed 1 --log-format simple --save-dir "$2" "${@:4}"
