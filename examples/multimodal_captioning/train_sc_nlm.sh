#!/usr/bin/env bash
# Trains SC-NLM on sentences' vectors: train_sc_nlm.sh DATA SAVE_DIR EMBEDDING [ARCH] [options of fairseq-train]
# PAPER=1: trains as the code of Kiros et al.; by default as was found best on Flickr8k.
set -euo pipefail
if [ $# -lt 3 ] || [[ "${4:-}" == -* ]]; then sed -n 2p "$0" >&2; exit 2; fi
data=$1 out=$2 embedding=$3
source "$(dirname "$0")/../gpus.sh"
case "${PAPER:-}" in
1)
    # The paper gives no training of SC-NLM; this is the one of the authors' code of the models that it
    # extends (multimodal-neural-language-models, trainer.py and lm/mlbl.py, batches of 40 words): SGD at
    # .43, divided by 40 once more, with a momentum of .23 that averages gradients, hence a rate of
    # .43 / 40 * (1 - .23) for SGD's that sums them; .99 times the rate after every 100,000 words
    # and every epoch, .96 an epoch of Flickr8k; a word's weight decay of 3e-7 for all parameters (1e-8
    # for context matrices there); 10 epochs, no clipping. Four captions are some 45 words.
    share_batch 4 pairs
    SETTINGS=(--optimizer sgd --lr 0.0083 --momentum 0.23 --weight-decay 3e-7
        --lr-scheduler epoch_decay --decay-factor 0.96 --decay-epochs 1 --max-epoch 10 --clip-norm 0)
    ;;
"")
    share_batch 128 pairs
    updates=2350  # 10 epochs of Flickr8k
    SETTINGS=(--optimizer adam --lr 1e-3 --lr-scheduler polynomial_decay
        --total-num-update $updates --max-update $updates --clip-norm 5)
    ;;
*) echo "PAPER must be 1 or unset, but is $PAPER." >&2; exit 2 ;;
esac
if [ "${WORLD_SIZE:-${SLURM_NTASKS:-1}}" != 1 ]; then
    echo "train_sc_nlm.sh embeds the sentences before it trains: start it once;" \
        "fairseq-train starts a process on each of the machine's GPUS." >&2
    exit 2
fi
for split in "$data/train" "$data/valid"; do
    if [ -d "$data" ] && [ ! -f "$split.tags" ] && ! grep -qs '"tags": ' "$split.jsonl"; then
        echo "train_sc_nlm.sh: $split.jsonl: has no tags; scripts/tag_pos.py $data writes those of both splits" >&2
        exit 2
    fi
done
# a data folder of the same sentences, whose features are their own vectors
vectors=$out/data
mkdir -p "$vectors"
# where nothing is embedded, nothing is left
trap 'rmdir "$vectors" "$out" 2> /dev/null || true' EXIT
for split in train valid; do
    fairseq-mm embed "$data" --checkpoint "$embedding" --split $split --of sentences \
        --output "$vectors/$split.h5" --overwrite
    mv "$vectors/$split.$split.jsonl" "$vectors/$split.jsonl"
done
cp "$data/dict.txt" "$vectors"
exec fairseq-train "$vectors" --user-dir "$(dirname "$0")/../../fairseq_mm" \
    --features "$vectors/train.h5:$vectors/valid.h5" --preload-features --num-workers 0 \
    --task multimodal_captioning --arch "${4:-sc_nlm}" --criterion cross_entropy \
    "${SETTINGS[@]}" \
    --batch-size "$BATCH" "${PROCESSES[@]}" --required-batch-size-multiple 1 \
    --no-epoch-checkpoints --seed 1 --log-format simple --save-dir "$out" "${@:5}"
