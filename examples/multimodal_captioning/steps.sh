# Sourced by flickr8k.sh and own_images.sh, which describe the variables UPDATES and WEIGHTS, and set
# out (folder of all outputs) and photos (folder of images).
recipes=$(dirname "${BASH_SOURCE[0]}")
total=8 data=$out/data
source "$recipes/../steps.sh"
variables=("UPDATES=${UPDATES:-}" "WEIGHTS=${WEIGHTS:-}")

# Trains by a recipe of this folder: train RECIPE ARCH UPDATES [options of fairseq-train]
train() {
    local updates=${UPDATES:-$3}
    mkdir -p "$out/$2"
    # commands look for the extractor's weights beside the checkpoint
    if [ -f "${WEIGHTS:-}" ]; then cp "$WEIGHTS" "$out/$2/mobilenet_v2.pt"; fi
    "$recipes/$1" "$data" "$out/$2" "$2" --total-num-update "$updates" --max-update "$updates" \
        "${@:4}" 2>&1 | tee -i -a "$out/$2/train.log"
}

score() {
    fairseq-mm score "$out/captions.jsonl" --data "$data" --split valid \
        --metrics bleu,rouge_l,cider,novelty,diversity \
        --json "$out/scores.json" --per-item "$out/scores.jsonl"
    fairseq-mm rank "$data" --checkpoint "$out/vse_bow" --split valid
}

# The steps after prepare and extract: train_to_page UPDATES_OF_M_RNN UPDATES_OF_VSE_BOW IMAGES
train_to_page() {
    step "train m_rnn" train train_m_rnn.sh m_rnn "$1" --validate-interval 5
    step "train vse_bow" train train_vse.sh vse_bow "$2" --loss info_nce
    step caption fairseq-mm caption "$data" --split valid --checkpoint "$out/m_rnn" \
        --jsonl --output "$out/captions.jsonl"
    step score score
    step page fairseq-mm report --data "$data" --split valid --images "$3" \
        --hypotheses "$out/captions.jsonl" --scores "$out/scores.jsonl" \
        --metrics bleu,rouge_l,cider \
        --title "m_rnn: captions of the validation images" --output "$out/page.html"
    step index fairseq-mm index "$photos" --checkpoint "$out/vse_bow" --output "$out/index.h5"
    cat <<END

Caption an image:      fairseq-mm caption photo.jpg --checkpoint $(printf %q "$out/m_rnn")
Search the images:     fairseq-mm search $(printf %q "$photos") "a dog in the snow" --index $(printf %q "$out/index.h5")
Look at the captions:  open $(printf %q "$out/page.html") in a browser
END
}
