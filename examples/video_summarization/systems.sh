# Sourced by 1_train.sh: OPTIONS of the system that $SYSTEM names, a row of the paper's tables.
# GPUS: see ../gpus.sh. BATCH=10 (default): examples on each at a time; an update has 120, 8 or 4.
BATCH="${BATCH:-10}"
if ! [[ "$BATCH" =~ ^[1-9][0-9]*$ ]]; then
    echo "BATCH must be a number of 1 or more, but is $BATCH." >&2
    exit 2
fi
USER_DIR="${USER_DIR:-$(dirname "${BASH_SOURCE[0]}")/../../fairseq_mm}"
source "$(dirname "${BASH_SOURCE[0]}")/../gpus.sh"

CRITERION=(--criterion cross_entropy)
# VG-BART's paper, section 4.2: rate schedule, epochs, early stopping, weight decay (its released code has
# none). Learning rates: section 4.2 names 6e-4 and 3e-5 "following Lewis et al. (2019) and Raffel et al.
# (2019)", which gives BART 6e-4 and T5 3e-5 if read in order. BART has 3e-5 here, as in the released code,
# so the other printed rate is T5's. --clip-norm 1 is the released code's, too; the paper names no clipping.
SCHEDULE=(--lr-scheduler epoch_decay --decay-factor 0.95 --decay-epochs 10 --max-epoch 60 --patience 5
    --eval-gen --best-checkpoint-metric rouge2 --maximize-best-checkpoint-metric)
# Table 1's baselines are those of Liu et al. 2020, trained as their released code trains: by
# torch.optim.Adam without weight decay, transformers with AMSGrad; the rate is constant. Lengths:
# mf_rnn/configs/mfn_rnn.conf (600 words) and mf_transformer/seq2seq/data/dataset.py (800; 1,024 frames).
LENGTHS=(--max-target-positions 200 --max-frames 1024)
case "$SYSTEM" in
s2s | pointer_generator | pointer_generator_coverage | hierarchical_attention_rnn | mffg_rnn)
    OPTIMIZATION=(--optimizer adam_l2 --weight-decay 0 --lr 1.5e-4 --clip-norm 1 --dropout 0.3
        --max-source-positions 600 "${LENGTHS[@]}")
    # mfn_rnn.conf: 50 epochs, validated by ROUGE-L of a beam of 6 every 1,000 updates, patience 66
    SCHEDULE=(--lr-scheduler fixed --max-epoch 50 --save-interval-updates 1000
        --keep-interval-updates 1 --patience 66
        --eval-gen --eval-gen-args '{"beam": 6, "max_len_b": 200, "no_repeat_ngram_size": 0}'
        --best-checkpoint-metric rouge_l_f1 --maximize-best-checkpoint-metric)
    EXAMPLES=4
    ;;
tf | hierarchical_attention_transformer | mffg_transformer)
    OPTIMIZATION=(--optimizer adam_l2 --amsgrad --weight-decay 0 --adam-betas "(0.9, 0.98)"
        --lr 1.5e-4 --clip-norm 0.1 --dropout 0.1 --max-source-positions 800 "${LENGTHS[@]}")
    # mf_transformer/train.py: 10 epochs, validated by the loss
    SCHEDULE=(--lr-scheduler fixed --max-epoch 10)
    EXAMPLES=8
    ;;
bart)
    OPTIMIZATION=(--optimizer adam --weight-decay 1e-5 --lr 3e-5 --clip-norm 1)
    EXAMPLES=120
    ;;
t5)
    OPTIMIZATION=(--optimizer adam --weight-decay 1e-5 --lr 6e-4 --clip-norm 1)
    EXAMPLES=120
    ;;
vg_bart*)
    OPTIMIZATION=(--optimizer adam_parameter_groups --weight-decay 1e-5 --lr 3e-5 --added-lr 1.5e-4 --clip-norm 1)
    EXAMPLES=120
    ;;
vg_t5*)
    OPTIMIZATION=(--optimizer adam_parameter_groups --weight-decay 1e-5 --lr 6e-4 --added-lr 1.5e-4 --clip-norm 1)
    EXAMPLES=120
    ;;
esac

DOT_PRODUCT=(--fusion dot_product)
MULTI_HEAD=(--fusion multi_head)
PLAIN=(--forget-gate off --video-encoder-layers 0)
case "$SYSTEM" in
# Table 1
s2s)
    ARCH=lstm
    SIZES=(--encoder-embed-dim 128 --encoder-hidden-size 256 --encoder-layers 2 --encoder-bidirectional
        --decoder-embed-dim 128 --decoder-hidden-size 256 --decoder-layers 2 --decoder-out-embed-dim 128
        --share-decoder-input-output-embed)  # tied_emb: 2way
    ;;
tf)
    ARCH=transformer
    SIZES=(--encoder-layers 4 --encoder-embed-dim 512 --encoder-ffn-embed-dim 2048
        --encoder-attention-heads 8 --decoder-layers 4 --decoder-embed-dim 512
        --decoder-ffn-embed-dim 2048 --decoder-attention-heads 8 --encoder-normalize-before
        --decoder-normalize-before --encoder-learned-pos --decoder-learned-pos --share-all-embeddings
        --attention-dropout 0.1 --activation-dropout 0.1 --no-scale-embedding)
    ;;
pointer_generator_coverage)
    # See et al. 2017, section 5: a trained pointer-generator goes on for 3,000 updates with coverage
    if [ -z "${PRETRAINED:-}" ]; then
        echo "$SYSTEM goes on from a pointer_generator: PRETRAINED=SAVE_DIR/checkpoint_best.pt." >&2
        exit 2
    fi
    ARCH=pointer_generator
    SIZES=(--coverage --finetune-from-model "$PRETRAINED" --max-update 3000)
    CRITERION=(--criterion coverage_cross_entropy --label-smoothing 0 --coverage-weight 1)
    ;;
pointer_generator | hierarchical_attention_rnn | hierarchical_attention_transformer | mffg_rnn | mffg_transformer)
    ARCH=$SYSTEM SIZES=()
    ;;
bart) ARCH=bart_base SIZES=() ;;
t5) ARCH=t5_base SIZES=() ;;
vg_bart_dot_product) ARCH=vg_bart_base SIZES=("${DOT_PRODUCT[@]}" "${PLAIN[@]}") ;;
vg_bart_multi_head) ARCH=vg_bart_base SIZES=("${MULTI_HEAD[@]}" "${PLAIN[@]}") ;;
vg_t5_dot_product) ARCH=vg_t5_base SIZES=("${DOT_PRODUCT[@]}" "${PLAIN[@]}") ;;
vg_t5_multi_head) ARCH=vg_t5_base SIZES=("${MULTI_HEAD[@]}" "${PLAIN[@]}") ;;
# section 5.2's variant of the dot product
vg_bart_dot_product_projected)
    ARCH=vg_bart_base
    SIZES=(--fusion dot_product_projected "${PLAIN[@]}")
    ;;
# Figure 3, and the best of the released checkpoints
vg_bart_dot_product_fg | vg_bart_dot_product_fg_vtf) ARCH=$SYSTEM SIZES=() ;;
# Table 2, on the multi-head fusion
vg_bart_fg) ARCH=vg_bart_base SIZES=("${MULTI_HEAD[@]}" --forget-gate on --video-encoder-layers 0) ;;
vg_bart_vtf) ARCH=vg_bart_base SIZES=("${MULTI_HEAD[@]}" --forget-gate off --video-encoder-layers 4) ;;
vg_bart_fg_vtf) ARCH=vg_bart_base SIZES=("${MULTI_HEAD[@]}" --forget-gate on --video-encoder-layers 4) ;;
*)
    echo "$SYSTEM is no system of these tables: s2s, pointer_generator, pointer_generator_coverage, tf, t5," \
        "bart, hierarchical_attention_rnn, hierarchical_attention_transformer, mffg_rnn, mffg_transformer," \
        "vg_t5_dot_product, vg_t5_multi_head, vg_bart_dot_product, vg_bart_dot_product_projected," \
        "vg_bart_dot_product_fg, vg_bart_dot_product_fg_vtf, vg_bart_multi_head, vg_bart_fg," \
        "vg_bart_vtf or vg_bart_fg_vtf." >&2
    exit 2
    ;;
esac

if [ "$EXAMPLES" = 120 ]; then
    if [ -z "${PRETRAINED:-}" ]; then
        echo "$SYSTEM begins with a pretrained model: PRETRAINED=FOLDER/model.pt, see README.md." >&2
        exit 2
    fi
    # the weights come without the dropouts that the model was pretrained and published with
    DROPOUTS=$(fairseq-mm pretrained-options "$PRETRAINED")
    read -r -a DROPOUTS <<< "$DROPOUTS"
    SIZES+=(--finetune-from-model "$PRETRAINED" "${DROPOUTS[@]}")
fi
MOST=$BATCH
share_batch "$EXAMPLES" examples
if [ "$BATCH" -gt "$MOST" ]; then BATCH=$MOST; fi
if [ $((EXAMPLES % (GPUS * BATCH))) != 0 ]; then
    echo "GPUS times BATCH must divide $EXAMPLES, but is $GPUS times $BATCH." >&2
    exit 2
fi
OPTIMIZATION+=(--batch-size "$BATCH" --update-freq "$((EXAMPLES / (GPUS * BATCH)))" "${PROCESSES[@]}")
