#!/usr/bin/env bash
# The language model that writes prompts (sections 3.1 and 9.1), or with ARCH and another folder the
# story language models of Table 3.
# Usage: 1_train_prompt_lm.sh DATA/prompts SAVE_DIR [ARCH] [options of fairseq-train ...]
set -euo pipefail
source "$(dirname "$0")/sizes.sh"
DATA=$1 SAVE=$2 ARCH=${3:-gcnn_lm_self_att}

fairseq-train "$DATA" "${COMMON[@]}" --task language_modeling --sample-break-mode eos \
    --tokens-per-sample 1022 --arch "$ARCH" "${LANGUAGE[@]}" "${LANGUAGE_OPTIMIZATION[@]}" \
    --save-dir "$SAVE" "${@:4}"
