# Sourced by recipes of several steps, which set out (folder of all outputs) and total (number of steps).
number=0
if ! [[ "${UPDATES:-1}" =~ ^[1-9][0-9]*$ ]]; then
    echo "UPDATES must be a number of 1 or more, but is $UPDATES." >&2
    exit 2
fi
weights=() limit=()
if [ -n "${WEIGHTS:-}" ]; then weights=(--weights "$WEIGHTS"); fi
if [ -n "${UPDATES:-}" ]; then limit=(--max-update "$UPDATES"); fi
trap 'echo "Interrupted: run the same command again to continue." >&2; exit 130' INT

# Refuses a folder in which a step was done with other inputs: begin INPUT...
begin() {
    local begun
    inputs=$*
    if [ -z "$out" ]; then
        echo "OUT must be a folder, but is empty." >&2
        exit 2
    fi
    if [ -e "$out/done/begun" ]; then
        begun=$(cat "$out/done/begun")
        if [ "$begun" != "$inputs" ]; then
            echo "$out: holds a run of other inputs or settings ($begun; now: $inputs): name another OUT." >&2
            exit 2
        fi
    fi
}

# Counts the lines of your own data, and sets a tenth apart for validation unless lines have "split",
# in options of fairseq-mm prepare: set_apart FILE
set_apart() {
    options=() count=$(grep -c . "$1")
    if ! grep -q '"split"' "$1"; then
        options+=(--valid-size $((count < 10 ? 1 : count < 10000 ? count / 10 : 1000)))
    fi
}

# Refuses your own data that is no file: begin_own FILE NAME
begin_own() {
    if [ ! -f "$1" ]; then
        echo "$1: no such file." >&2
        exit 2
    fi
    begin "$2 of checksum $(cksum < "$1")" "UPDATES=${UPDATES:-}" "WEIGHTS=${WEIGHTS:-}"
}

# Runs a command unless an earlier run of the recipe has ended it: step NAME COMMAND...
step() {
    number=$((number + 1))
    if [ -e "$out/done/$1" ]; then
        echo "[$number/$total] $1: done before"
        return
    fi
    echo "[$number/$total] $1, begun at $(date +%H:%M)"
    "${@:2}"
    mkdir -p "$out/done"
    # not before: inputs that cannot be used may be corrected
    echo "$inputs" > "$out/done/begun"
    touch "$out/done/$1"
}
