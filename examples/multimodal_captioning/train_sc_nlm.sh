#!/usr/bin/env bash
# Trains SC-NLM on sentences' vectors: train_sc_nlm.sh DATA SAVE_DIR EMBEDDING [ARCH] [options of fairseq-train]
set -euo pipefail
if [ $# -lt 3 ] || [[ "${4:-}" == -* ]]; then sed -n 2p "$0" >&2; exit 2; fi
data=$1 out=$2 embedding=$3
source "$(dirname "$0")/../gpus.sh"
share_batch 128 pairs
if [ "${WORLD_SIZE:-${SLURM_NTASKS:-1}}" != 1 ]; then
    echo "train_sc_nlm.sh embeds the sentences before it trains: start it once;" \
        "fairseq-train starts a process on each of the machine's GPUS." >&2
    exit 2
fi
# a data folder of the same sentences, whose features are their own vectors
vectors=$out/data
mkdir -p "$vectors"
for split in train valid; do
    fairseq-mm embed "$data" --checkpoint "$embedding" --split $split --of sentences \
        --output "$vectors/$split.h5" --overwrite
    mv "$vectors/$split.$split.visual_ids" "$vectors/$split.visual_ids"
    cp "$data/$split.bin" "$data/$split.idx" "$data/$split.tags" "$vectors"
done
cp "$data/dict.txt" "$vectors"
updates=2350  # 10 epochs of Flickr8k
exec fairseq-train "$vectors" --user-dir "$(dirname "$0")/../../fairseq_mm" \
    --features "$vectors/train.h5:$vectors/valid.h5" --preload-features --num-workers 0 \
    --task multimodal_captioning --arch "${4:-sc_nlm}" --criterion cross_entropy \
    --optimizer adam --lr 1e-3 --lr-scheduler polynomial_decay \
    --total-num-update $updates --max-update $updates --clip-norm 5 \
    --batch-size "$BATCH" "${PROCESSES[@]}" --required-batch-size-multiple 1 \
    --no-epoch-checkpoints --seed 1 --log-format simple --save-dir "$out" "${@:5}"
