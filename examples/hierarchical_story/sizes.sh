# Sourced by the recipes. SIZE=full (default): the paper's settings where it gives them, else those of
# the released code; docs/tasks/hierarchical_story.md lists which. SIZE=small: for a few hundred
# stories on a CPU. GPUS: see ../gpus.sh; an update has 12,000 tokens in all, so that 1, 2, 4 or 8
# GPUs share them. TOKENS (SIZE=full): tokens of a forward pass of a GPU; by default its whole share,
# which is fastest. A story has up to 1,000 tokens, which is why 1,500 are the fewest.
SIZE="${SIZE:-full}"
USER_DIR="${USER_DIR:-$(dirname "${BASH_SOURCE[0]}")/../../fairseq_mm}"
source "$(dirname "${BASH_SOURCE[0]}")/../gpus.sh"

case "$SIZE" in
full)
    share_batch 8 "batches of 1,500 tokens"
    SHARE=$((1500 * BATCH))
    TOKENS="${TOKENS:-$SHARE}"
    if ! [[ "$TOKENS" =~ ^[1-9][0-9]{3,5}$ ]] || [ "$TOKENS" -lt 1500 ] || [ $((SHARE % TOKENS)) != 0 ]; then
        echo "TOKENS must be 1500 or more and divide $SHARE, a GPU's part of an update, but is $TOKENS." >&2
        exit 2
    fi
    STORY=()   # the architectures' own sizes
    FUSION=()
    LANGUAGE=()
    LSTM=(--encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 256 --decoder-embed-dim 256
        --encoder-hidden-size 1024 --decoder-hidden-size 1024 --decoder-out-embed-dim 256
        --dropout 0.3)
    OPTIMIZATION=(
        --optimizer nag --momentum 0.99 --lr 0.25 --clip-norm 0.1 --weight-decay 1e-7
        --lr-scheduler reduce_lr_on_plateau --max-tokens "$TOKENS" --update-freq "$((SHARE / TOKENS))"
        --max-epoch 30)
    LANGUAGE_OPTIMIZATION=("${OPTIMIZATION[@]}" --lr 1)
    ;;
small)
    share_batch 1 "batches of 3,000 tokens"
    WIDTHS=(--decoder-embed-dim 64 --decoder-out-embed-dim 64)
    STORY=("${WIDTHS[@]}" --encoder-embed-dim 64 --encoder-layers '[(64, 3)] * 2 + [(128, 3)]'
        --decoder-layers '[(128, 4)] * 3 + [(192, 4)]' --dropout 0.2)
    FUSION=("${WIDTHS[@]}" --encoder-embed-dim 64 --encoder-layers '[(64, 3)] * 3'
        --decoder-layers '[(128, 4)] * 2 + [(192, 4)]' --dropout 0.2 --frozen-dropout)
    LANGUAGE=("${WIDTHS[@]}" --decoder-layers '[(128, 4)] * 3 + [(192, 4)]' --dropout 0.2)
    LSTM=("${WIDTHS[@]}" --encoder-embed-dim 64 --encoder-hidden-size 256 --decoder-hidden-size 256
        --dropout 0.2)
    OPTIMIZATION=(
        --optimizer adam --lr 4e-3 --clip-norm 0.5 --lr-scheduler inverse_sqrt
        --warmup-updates 100 --max-tokens 3000 --max-epoch 14)
    LANGUAGE_OPTIMIZATION=("${OPTIMIZATION[@]}")
    ;;
*)
    echo "SIZE must be full or small, but is $SIZE instead." >&2
    exit 2
    ;;
esac

COMMON=(--user-dir "$USER_DIR" --criterion chunked_cross_entropy --required-batch-size-multiple 1
    --no-epoch-checkpoints --log-format simple --seed 1 "${PROCESSES[@]}")
