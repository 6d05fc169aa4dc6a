# Sourced by the recipes. GPUS=N (default: 1): GPUs of all nodes together, one process on each, with
# the same batch of all together whatever their number.
GPUS="${GPUS:-1}"
if ! [[ "$GPUS" =~ ^[1-9][0-9]*$ ]]; then
    echo "GPUS must be a number of 1 or more, but is $GPUS." >&2
    exit 2
fi
if [ -n "${WORLD_SIZE:-}" ] && [ "$WORLD_SIZE" != "$GPUS" ]; then
    echo "GPUS must be the number of processes that were started, $WORLD_SIZE, but is $GPUS." >&2
    exit 2
fi
# without a GPU, and without instructions for bfloat16, float32 is many times faster than --bf16
if ! nvidia-smi -L > /dev/null 2>&1 && ! grep -qE 'avx512_bf16|amx_bf16' "${CPUINFO:-/proc/cpuinfo}"; then
    for word; do shift; [ "$word" = --bf16 ] || set -- "$@" "$word"; done
fi
# further options of fairseq-train: of the visible GPUs no more than these
PROCESSES=(--distributed-world-size "$GPUS")

# Sets BATCH to the share of each GPU in an update: share_batch EXAMPLES NAME
share_batch() {
    if [ $(($1 % GPUS)) != 0 ]; then
        echo "GPUS must divide $1, the number of $2 in an update, but is $GPUS." >&2
        exit 2
    fi
    BATCH=$(($1 / GPUS))
}
