# Sourced by recipes of several steps, which set out (folder of all outputs) and total (number of steps).
number=0
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
            echo "$out: was begun with $begun, but now there is $inputs: name another OUT." >&2
            exit 2
        fi
    fi
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
