#!/usr/bin/env bash
# A system of the paper's tables: 1_train.sh DATA SAVE_DIR SYSTEM [options of fairseq-train]
# Table 1: s2s, pointer_generator, pointer_generator_coverage, tf, t5, bart, hierarchical_attention_rnn,
#   hierarchical_attention_transformer, mffg_rnn, mffg_transformer, vg_t5_dot_product,
#   vg_t5_multi_head, vg_bart_dot_product, vg_bart_multi_head
# Table 2: vg_bart_fg, vg_bart_vtf, vg_bart_fg_vtf
# Figure 3: vg_bart_dot_product_fg
# The best of the released checkpoints: vg_bart_dot_product_fg_vtf
# Table 3: any that reads videos, with --noise-features
# Tables 4 and 5: vg_bart_fg_vtf with --fusion-encoder-layers and --fusion-decoder-layers
set -euo pipefail
if [ $# -lt 3 ]; then sed -n 2p "$0" >&2; exit 2; fi
SYSTEM=$3
source "$(dirname "$0")/systems.sh"

exec fairseq-train "$1" --user-dir "$USER_DIR" --task video_summarization --arch "$ARCH" "${SIZES[@]}" \
    "${CRITERION[@]}" "${OPTIMIZATION[@]}" "${SCHEDULE[@]}" --seed 1 \
    --required-batch-size-multiple 1 --no-epoch-checkpoints --log-format simple --save-dir "$2" "${@:4}"
