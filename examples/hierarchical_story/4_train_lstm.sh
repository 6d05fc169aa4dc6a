#!/usr/bin/env bash
# Table 3's LSTM seq2seq: 4_train_lstm.sh DATA SAVE_DIR [options of fairseq-train]
# The model is fairseq's. sizes.sh gives 110.4 M parameters, where the paper has 110.3 M and no sizes.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n 2p "$0" >&2; exit 2; fi
source "$(dirname "$0")/sizes.sh"

exec fairseq-train "$1" "${COMMON[@]}" --task hierarchical_story --arch lstm "${LSTM[@]}" \
    "${OPTIMIZATION[@]}" --save-dir "$2" "${@:3}"
