# Sourced by recipes of several steps, which set out (folder of all outputs) and total (number of steps).
number=0

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
    touch "$out/done/$1"
}
