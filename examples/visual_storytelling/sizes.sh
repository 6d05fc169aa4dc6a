# Sourced by the recipes. SIZE=full (default): the paper's settings where it gives them, else those of
# the released code; docs/tasks/visual_storytelling.md lists which. SIZE=small: for a few thousand
# stories on a CPU. GPUS: see ../gpus.sh; an update has 64 stories in all (16 or 32 with SIZE=small).
SIZE="${SIZE:-full}"
USER_DIR="${USER_DIR:-$(dirname "${BASH_SOURCE[0]}")/../../fairseq_mm}"
source "$(dirname "${BASH_SOURCE[0]}")/../gpus.sh"

case "$SIZE" in
full)
    SIZES=() # the architectures' own sizes
    STORIES=64
    OPTIMIZATION=(--max-epoch 100 --patience 5 --seed 2020)
    case "$ARCH" in
    glac*) OPTIMIZATION+=(--lr 1e-3) ;;
    *) OPTIMIZATION+=(--lr 1e-4) ;;
    esac
    ;;
small)
    STORIES=32
    OPTIMIZATION=(--clip-norm 5 --lr-scheduler inverse_sqrt --patience 2 --seed 1)
    case "$ARCH" in
    glac*)
        SIZES=(--picture-dim 256 --encoder-hidden-dim 128 --glocal-dim 512 --embedding-dim 128
            --hidden-dim 384 --encoder-dropout 0.2 --embedding-dropout 0.3)
        OPTIMIZATION+=(--lr 2e-3 --warmup-updates 500 --max-epoch 16)
        STORIES=16
        ;;
    transtory_decoder)
        SIZES=(--picture-dim 256 --encoder-hidden-dim 128 --glocal-dim 512 --decoder-ffn-dim 512
            --encoder-dropout 0.2 --embedding-dropout 0.2 --dropout 0.2)
        OPTIMIZATION+=(--lr 1e-3 --warmup-updates 200 --max-epoch 16)
        ;;
    transtory_full)
        SIZES=(--picture-dim 256 --encoder-ffn-dim 512 --decoder-ffn-dim 512
            --embedding-dropout 0.2 --dropout 0.2)
        OPTIMIZATION+=(--lr 1e-3 --warmup-updates 200 --max-epoch 16)
        ;;
    transtory_xl)
        SIZES=(--picture-dim 256 --embedding-dim 128 --model-dim 256 --decoder-ffn-dim 512
            --dropout 0.2)
        OPTIMIZATION+=(--lr 1e-3 --warmup-updates 200 --max-epoch 16)
        ;;
    *)
        echo "SIZE=small has no sizes for $ARCH." >&2
        exit 2
        ;;
    esac
    ;;
*)
    echo "SIZE must be full or small, but is $SIZE instead." >&2
    exit 2
    ;;
esac
# A temperature of 1, the paper's, learns to ignore the images: see docs/tasks/visual_storytelling.md.
if [ "$ARCH" = glac_decoder_attention ]; then SIZES+=(--slice-temperature 100); fi
# the released trainers' torch.optim.Adam adds the weight decay to the gradient
OPTIMIZATION+=(--optimizer adam_l2 --weight-decay 1e-5)
share_batch "$STORIES" stories
OPTIMIZATION+=(--batch-size "$BATCH" "${PROCESSES[@]}")
