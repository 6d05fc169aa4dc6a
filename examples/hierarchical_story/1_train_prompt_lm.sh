#!/usr/bin/env bash
# A language model: 1_train_prompt_lm.sh DATA/prompts SAVE_DIR [ARCH] [options of fairseq-train]
# Of prompts (sections 3.1 and 9.1), or with DATA/stories of stories, as in Tables 3 and 4.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n 2p "$0" >&2; exit 2; fi
source "$(dirname "$0")/sizes.sh"

exec fairseq-train "$1" "${COMMON[@]}" --task language_modeling --sample-break-mode eos \
    --tokens-per-sample 1022 --arch "${3:-gcnn_lm_self_att}" "${LANGUAGE[@]}" \
    "${LANGUAGE_OPTIMIZATION[@]}" --save-dir "$2" "${@:4}"
