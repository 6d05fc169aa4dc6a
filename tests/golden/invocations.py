"""How every system is run: a name of what is done -> the commands or the Python function.

Names, ids and fields of outputs are kept in ``tests/data/golden/outputs``. If an option, a
subcommand, a method or the name of a field changes, only this table does.
"""

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import golden_records as records
import numpy as np
from golden_commands import Printed, fairseq_mm, generate, script, validate
from golden_files import DATA
from golden_records import Records
from systems import (
    CAPTIONER,
    FAMILIES,
    STORY,
    STRUCTURED,
    SUMMARIZER,
    SYSTEMS,
    TASKS,
    VISUAL_STORY,
    WITHOUT_DICTIONARY,
    System,
)

import fairseq_mm as package
from fairseq_mm.data.feature_store import FeatureStore

SCRIPTS = Path(package.__file__).parents[1] / "scripts"
CHECKPOINT = "checkpoint_best.pt"
OUTPUT_FILES = (*FAMILIES, "commands")
PROMPTS = '--prompt "[WP] You find a door ." --prompt "the old zebra house in a"'
READS_NO_VIDEO = (
    *("t5", "t5_gated", "pointer_generator", "pointer_generator_coverage"),
    *("summary_lstm", "summary_transformer", "bart"),
)
LENGTHS = {
    CAPTIONER: "--max-len-b 12",
    STRUCTURED: "--max-len-b 12",
    VISUAL_STORY: "--max-words-per-sentence 8",
    STORY: "--min-len 1 --max-len-b 20",
    SUMMARIZER: "--max-len-b 20 --no-repeat-ngram-size 3",
}

# A row of the tables is
#
#   name: systems or their kinds (without those after a minus) [systems of the fast suite]
#       command
#       another command
#
# A ~ before the name: other versions of PyTorch, torchvision and Pillow give other texts, because
# random numbers are drawn, or images decoded and scaled. The output of the last command is kept.
# Options that all calls of a command have are in OPTIONS, names in braces in Case.
TABLE = """
fairseq-generate beam: all - embedding language_model [m_rnn glac conv_story_fusion vg_bart]
    fairseq-generate {length} --beam 3
~fairseq-generate sampling: all - embedding language_model
    fairseq-generate {length} --beam 1 --sampling --sampling-topk 8 --temperature 0.8
fairseq-generate defaults: mlbl_b transtory_decoder conv_story_wp vg_bart_plain
    fairseq-generate
fairseq-generate nbest: mlbl_f transtory_xl conv_story_gated vg_t5
    fairseq-generate {length} --beam 4 --lenpen 0.5 --unkpen 3 --min-len 2
fairseq-generate reference: captioner visual_story summarizer [transtory_xl]
    fairseq-generate --score-reference --all-lines
fairseq-generate reference: story
    fairseq-generate --score-reference
fairseq-generate rules: visual_story
    fairseq-generate --beam 2 --min-words-per-sentence 2 --max-words-per-sentence 5
        --repetition-penalty 5
fairseq-generate prefix: m_rnn mlbl_f
    fairseq-generate {length} --beam 2 --prefix-words 'a dog'
fairseq-validate: embedding structured story
    fairseq-validate
fairseq-validate generated text: captioner visual_story summarizer - mlbl_b_vectors [vg_t5]
    fairseq-validate --eval-gen --eval-gen-args '{{"beam": 2, "max_len_b": 12}}'

caption features: captioner - mlbl_b_vectors [m_rnn]
    caption {stored} --max-len-b 12
~caption sampling: captioner - mlbl_b_vectors
    caption {stored} --sampling --sampling-topk 8 --seed 3 --max-len-b 12
caption prefix and nearest: m_rnn
    caption {stored} --prefix 'a dog' --nearest {data} --no-repeat-ngram-size 2 --temperature 1.5
~caption images: m_rnn_images transformer_captioner_images [m_rnn_images]
    caption {three_images} --weights {weights}
~caption images by vectors: mlbl_b_vectors
    caption {three_images} --weights {weights} --embedding {root}/captions/vse_images
caption images by structure: structured [sc_nlm]
    caption {images}/valid0.jpg {images}/valid1.jpg --weights {weights} {structured}
caption features by structure: structured
    caption --features {captions_images}/features.h5 valid0.jpg valid1.jpg valid2.jpg {structured}
        --beam 2 --language-score sentence --conditions image sentences
python caption features: captioner - mlbl_b_vectors
~python caption images: m_rnn_images transformer_captioner_images mlbl_b_vectors
~python caption by structure: structured
python ensemble: m_rnn

rank: captioner - mlbl_b_vectors [m_rnn]
    rank {data} --split valid --max-images 4 --output {out} --marginal-images 3 --shortlist 2
rank: embedding [vse_lstm]
    rank {data} --split valid --max-images 4 --output {out}
embed: embedding [vse_gru]
    embed {data} --split valid --output {out}/o.h5 --of images sentences words
retrieve nearest: embedding
    embed {data} --split valid --output {out}/v.h5
    retrieve nearest --data {data} 'a red dog' --minus red --plus cat
retrieve nearest to an item: embedding
    embed {data} --split valid --output {out}/v.h5
    retrieve nearest --data {data} --id valid1.jpg --resort 5
~retrieve nearest to an image: vse_images
    embed {data} --split valid --output {out}/v.h5
    retrieve nearest --data {data} --image {images}/valid2.jpg --weights {weights}
retrieve plot: vse_bow vse_lstm
    embed {data} --split valid --output {out}/v.h5
    retrieve plot --near 'a red dog' --near 'cat' --word red --word blue
python embed: embedding

tell split: visual_story [transtory_full]
    tell {data} --split valid {length}
~tell split sampling: visual_story
    tell {data} --split valid {length} --sampling-topk 8 --temperature 0.8 --seed 5
tell split paper: visual_story
    tell {data} --split valid {length} --preset paper --line 2 --line 4
tell ids: visual_story
    tell --features {features} {length} valid2_0 valid2_1 valid2_2 valid2_3 valid2_4
~tell images: glac_images [glac_images]
    tell {images}/valid1_0.jpg {images}/valid1_1.jpg {images}/valid1_2.jpg {images}/valid1_3.jpg
        {images}/valid1_4.jpg --weights {weights} {length}
tell systems: glac
    tell-compared {data} --split valid {length} --limit 2
        --compare G={model} XL={root}/stories/transtory_xl
python stories of images: visual_story
~python story of image files: glac_images
rank of visual stories: visual_story
    rank {data} --split valid --draws 2 --output {out} --candidates 3
perplexity of visual stories: visual_story [glac_non_local]
    perplexity {data} --counting transtory --shuffled-images --seed 1
inspect stories: transtory_full glac_decoder_attention glac_non_local
    inspect {data} --split valid --lines 1,4

~tell prompts: story
    tell {prompts_given} --min-len 20 --max-len-b 20 --seed 3
tell prompts beam: story [conv_story_gated conv_story_wp]
    tell {prompts_given} --preset beam --min-len 1 --max-len-b 20
~tell prompts nucleus: conv_story_gated conv_story_fusion
    tell {prompts_given} --n 2 --preset paper --sampling-topp 0.9 --temperature 1.2 --min-len 12
        --max-len-b 12 --seed 4
~tell prompts default: conv_story_fusion
    tell --prompt '[WP] You find a door .'
~tell made-up prompts: conv_story_fusion
    tell --prompt-model {root}/prompts/gcnn_lm_self_att --n 3 --min-len 12 --max-len-b 12 --seed 3
~make up prompts: gcnn_lm gcnn_lm_self_att
    tell-prompts --prompt-model {model} --prompts-only --n 4 --seed 3
tell without prompts: gcnn_lm_stories [gcnn_lm_stories]
    tell --min-len 20 --max-len-b 20 --preset greedy
~tell without prompts sampling: gcnn_lm_stories
    tell --n 3 --min-len 20 --max-len-b 20 --seed 3
python stories: story - story_lstm
python ensemble of stories: conv_story_multihead
~python language model: gcnn_lm_stories
rank of stories: story - story_lstm
    rank {data} --split valid --draws 2 --output {out} --candidates 3
perplexity of stories: story - story_lstm
    perplexity {data} --tune-temperature --top-k 5
perplexity of a language model: language_model
    perplexity {prompts}
inspect story: story - story_lstm [conv_story_fusion]
    inspect {data} --split valid --line 1 --words 6

summarize split: summarizer [vg_bart pointer_generator]
    summarize {data} --split valid {video}
~summarize split sampling: summarizer
    summarize {data} --split valid {video} --sampling --sampling-topk 8 --seed 2
summarize split options: vg_t5 mffg_transformer bart
    summarize {data} --split valid {video} --beam 2 --lenpen 0.5 --min-len 4
        --no-repeat-ngram-size 2 --max-len-b 8
~summarize videos: vg_bart_clips
    summarize {clips}/video0.mp4 {clips}/video1.mp4 {clips}/video2.mp4
        --transcript {clips}/a.txt --transcript {clips}/b.srt --transcript {clips}/c.txt
python summaries: summarizer
~python summaries of videos: vg_bart_clips
inspect gates: vg_bart vg_bart_decoder vg_bart_released vg_t5 [vg_bart]
    inspect {data} --split valid --gates
inspect summaries: summarizer - reads_no_video vg_bart_clips
    inspect {data} --split valid --lines 0,3 --layers
doctor: all [m_rnn transtory_xl conv_story_wp pointer_generator]
    doctor --data {data} --checkpoint {checkpoint} {vectors}
"""
# commands that load no checkpoint; the name begins with that of the former subcommand
COMMANDS = """
score/coco: [fast]
    score captions --metrics bleu,rouge_l,cider,diversity,novelty
score/m_rnn:
    score captions --preset m_rnn --metrics bleu
score/compare:
    score captions --metrics bleu,cider --compare {out}/other.jsonl --bootstrap 40
score/vist:
    score stories --preset vist --metrics bleu,rouge_l,cider,sentences,diversity
score/vist meteor:
    score stories --preset vist --metrics meteor_vist
score/vist albums:
    score stories --preset vist --metrics bleu,cider --references-of album
score/how2: [fast]
    score videos --preset how2 --metrics rouge,bleu,cider,novel_ngrams
score/how2 content f1:
    score videos --preset how2 --metrics content_f1,meteor
gain/items:
    gain --system {out}/system.items.jsonl --text-only {out}/text.items.jsonl
        --baseline {out}/base.items.jsonl --bootstrap 50
gain/figures: [fast]
    gain --system 68.0,51.4,63.3 --text-only 64.0,46.4,58.9 --baseline 62.3,46.1,58.2
retrieve prompts/valid:
    retrieve prompts {prompts} --output {out}/o.jsonl --split valid --words 10
retrieve prompts/kth:
    retrieve prompts {prompts} --output {out}/o.jsonl --prompt 'You find the old house' --k 2
store/info: [fast]
    store info {captions}/features.h5
store/info of images:
    store info {captions_images}/features.h5
store/verify:
    store verify {videos}/features.h5
store/import:
    store import {releases}/own/array.npy --output {out}/o.h5 --ids {releases}/own/array_ids.txt
store/merge:
    store merge {captions}/features.h5 {releases}/own/features.h5 --output {out}/o.h5
store/merge of one:
    store merge {videos}/features.h5 --output {out}/o.h5 --dtype float16
prepare/captions: [fast]
    prepare captions {releases}/own/captions.jsonl --threshold 1 --valid-size 2
prepare/prompts: [fast]
    prepare prompts {releases}/own/prompts.jsonl --valid-size 2 --source-threshold 1
        --target-threshold 1
prepare/stories: [fast]
    prepare stories {releases}/own/stories.jsonl --valid-size 1 --threshold 1
prepare/videos: [fast]
    prepare videos {releases}/own/videos.jsonl --valid-size 2
prepare/videos with indexed OOV tokens: [fast]
    prepare videos {releases}/own/videos.jsonl --valid-size 2 --threshold 3
        --indexed-oov 4 --tokenizer words
prepare/flickr8k: [fast]
    prepare flickr8k {releases}/flickr8k --threshold 1
prepare/flickr30k:
    prepare flickr30k {releases}/flickr30k/dataset_flickr30k.json --threshold 1
prepare/coco:
    prepare coco {releases}/coco/captions_train2014.json {releases}/coco/captions_val2014.json
        --split m_rnn --split-ids valid={releases}/coco/valid.txt test={releases}/coco/test.txt
        --threshold 1
prepare/iapr_tc12:
    prepare iapr_tc12 {releases}/iapr_tc12/annotations --threshold 1
        --split-ids train={releases}/iapr_tc12/train.txt test={releases}/iapr_tc12/test.txt
prepare/vist: [fast]
    prepare vist {releases}/vist --threshold 1
prepare/vist descriptions: [fast]
    prepare vist {releases}/vist --tier description-in-isolation --threshold 1
prepare/writingprompts:
    prepare writingprompts {releases}/writingprompts --source-threshold 1 --target-threshold 1
prepare/how2:
    prepare how2 {releases}/how2/text --features {releases}/how2/actions
prepare/tags:
    tag
convert/kiros:
    convert {releases}/kiros/f8k.npz {out}/made
convert/vse++:
    convert {releases}/vsepp/model_best.pth.tar {out}/made
        --vocabulary {releases}/vsepp/vocabulary.pkl
convert/stories:
    convert {releases}/fconv/checkpoint.pt {out}/made.pt --data {prompts}
    tell --checkpoint {out}/made.pt {prompts_given} --preset beam --min-len 1 --max-len-b 12
~extract/images:
    extract {images} --model squeezenet1_1 --weights {weights} --resize squash --size 33
~extract/grid:
    extract {images} --model squeezenet1_1 --weights {weights} --size 33 --grid --ids stem
"""
_OUTPUT = "--device cpu --jsonl --output {out}/o.jsonl"
_JSONL = f"--checkpoint {{model}} {{dictionaries}} {_OUTPUT}"
OPTIONS = {
    "caption": _JSONL,
    "tell": _JSONL,
    "summarize": _JSONL,
    "tell-compared": _OUTPUT,
    "tell-prompts": _OUTPUT,
    "rank": "--checkpoint {checkpoint} --device cpu",
    "embed": "--checkpoint {model} --device cpu",
    "retrieve nearest": "--store {out}/v.h5 --checkpoint {model} --device cpu --top 4 --jsonl",
    "retrieve plot": "--store {out}/v.h5 --checkpoint {model} --device cpu --top 2 "
    "--output {out}/p.html --jsonl {out}/o.jsonl",
    "perplexity": "--checkpoint {checkpoint} --split valid --device cpu --json {out}/o.json",
    "inspect": "--checkpoint {checkpoint} --device cpu --output {out}/o.jsonl",
    "prepare": "--output {out}/made",
    "extract": "--device cpu --output {out}/o.h5",
}


class Case:
    """A system (None for commands without a checkpoint) in the folder ``root`` where everything was
    unpacked; ``out`` is an empty folder. ``places`` are the values of names in commands."""

    def __init__(self, root: Path, system: Optional[System], out: Path) -> None:
        self.root, self.out = root, out
        data = root / DATA
        folders = ("images", "clips", "releases", "captions", "captions_images", "prompts")
        places = {name: str(data / name) for name in (*folders, "stories", "videos")}
        places.update(root=str(root), out=str(out), model=f"{out}/made.pt", dictionaries="")
        places["weights"] = str(data / "extractor" / "squeezenet.pth")
        places["three_images"] = " ".join(f"{data}/images/valid{i}.jpg" for i in range(3))
        places["prompts_given"] = (
            '--prompt "[WP] You find a door ." --prompt "the old zebra house in a"'
        )
        places["structured"] = (
            f"--embedding {root}/captions/vse_images --data {data}/captions_images "
            "--candidates 30 --shortest 2 --longest 5 --top 2"
        )
        self.places = places
        if system is None:
            return
        self.system = system
        self.folder, self.data = root / system.family / system.name, data / system.data
        features, vectors = f"{self.data}/features.h5", ""
        if system.kind == STRUCTURED or system.name == "mlbl_b_vectors":
            features = f"{self.data}/train.h5:{self.data}/valid.h5"
            vectors = f"--features {features}"
        places.update(
            model=str(self.folder),
            checkpoint=str(self.folder / CHECKPOINT),
            data=str(self.data),
            features=features,
            vectors=vectors,
            video="" if system.name in READS_NO_VIDEO else f"--features {features}",
            stored=f"--features {features} valid0.jpg valid1.jpg valid2.jpg valid3.jpg",
            length=LENGTHS.get(system.kind, ""),
            # fairseq's own models find their dictionaries there
            dictionaries=f"--data {self.data}" if system.name in WITHOUT_DICTIONARY else "",
        )

    def words(self, template: str) -> list[str]:
        """Arguments of a template; quoted ones keep their spaces."""
        return shlex.split(template.format(**self.places))

    def mm(self, template: str) -> Printed:
        """Run ``fairseq-mm``, which must not fail."""
        printed = fairseq_mm(*self.words(template))
        assert printed.status == 0, f"{template}: {printed.err[-3:]}"
        return printed

    def jsonl(self, fields: str, name: str = "o.jsonl", key: str = "id") -> Records:
        """Fields of each JSON line; ``hypothesis=text`` is the field hypothesis, kept as text."""
        names = dict(reversed(f"{field}={field}".split("=")[:2]) for field in fields.split())
        return records.of_jsonl(self.out / name, fields=names, key=key)

    def json(self, name: str, *drop: str) -> Records:
        return records.of_json(self.out / name, drop=drop)

    def stored(self, *keys: str) -> list[Any]:
        store = FeatureStore(self.places["features"])
        return [store.read(key) for key in keys]

    def load(self, **options: Any) -> Any:
        return package.from_pretrained(self.folder, device="cpu", **options)


# Commands: what is kept of the output of each ------------------------------------------------


def _run_fairseq(case: Case, command: str) -> Records:
    program, options = f"{command} ".split(" ", 1)
    arguments = [str(case.data), *TASKS[case.system.kind].split()[:2], "--cpu", "--batch-size", "3"]
    arguments += ["--path", case.places["checkpoint"], *case.words(f"{{vectors}} {options}")]
    arguments += ["--num-workers", "0", "--required-batch-size-multiple", "1"]
    if program == "fairseq-validate":
        return {"valid": validate(*arguments, "--valid-subset", "valid")}
    lines = generate(*arguments, "--gen-subset", "valid", "--seed", "7")
    return records.of_generate(lines, with_positions="--score-reference" in options)


def _generated(case: Case, printed: Printed) -> Records:
    return case.jsonl(
        "hypothesis=text hypotheses=best score nearest sentences words system item tokens prompt "
        "prompt_tokens prompt_score unknown_words prompt_words_cut transcript_tokens "
        "transcript_tokens_cut frames frames_cut training_prompt training_line k"
    )


def _ranked(case: Case, printed: Printed) -> Records:
    if (case.out / "stories.jsonl").exists():
        stories = case.jsonl("rank ranks score best_other", "stories.jsonl")
        return {**case.json("ranking.json", "scores_of"), **stories}
    ranks: dict[str, dict[str, Any]] = {}
    for record in _read_jsonl(case.out / "ranks.jsonl"):
        ranks.setdefault(record["task"], {})[str(record["id"])] = record["rank"]
    return {**case.json("ranks.json", "curves", "chance"), **ranks}


def _inspected(case: Case, printed: Printed) -> Records:
    """All fields but those that only say where the data came from."""
    drop = {*records.VOLATILE, "checkpoint", "options", "data"}
    lines = enumerate(_read_jsonl(case.out / "o.jsonl"))
    return {str(i): {key: x for key, x in line.items() if key not in drop} for i, line in lines}


def _nearest(case: Case, printed: Printed) -> Records:
    (case.out / "o.jsonl").write_text("\n".join(printed.out))
    return case.jsonl("rank score distance_to_mean text")


def _doctor(case: Case, command: str) -> Records:
    """Lines about the data and the checkpoint; those about the machine are left out."""
    printed = fairseq_mm(*case.words(command))  # the status depends on the machine
    subjects = ("train", "valid", "test", "checkpoint", "subwords", "features")
    lines = [(line, (*line.split(), "", "")[1]) for line in printed.out]
    return records.of_lines(
        line for line, word in lines if str(case.root) in word or word.rstrip(":") in subjects
    )


def _read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _items(path: Path) -> Records:
    left_out = ("id", "hypothesis", "references")
    return {
        str(line["id"]): {key: x for key, x in line.items() if key not in left_out}
        for line in _read_jsonl(path)
    }


def _write_hypotheses(case: Case, family: str, name: str, shift: int) -> None:
    """Write references of another item, without one word, as generated texts."""
    data = Path(case.places[family])
    entries = list(_read_jsonl(data / "valid.references.jsonl"))
    stories: dict[str, str] = {}
    if family == "stories":
        lines = (data / "text" / "valid.txt").read_text().splitlines()
        stories = dict(zip((data / "valid.visual_ids").read_text().splitlines(), lines))
    with (case.out / f"{name}.jsonl").open("w") as file:
        for i, entry in enumerate(entries):
            other = entries[(i + shift) % len(entries)]
            words = stories.get(other["id"], other["references"][-1]).split()
            if family != "stories":
                del words[len(words) // 2]
                words += entry["references"][0].split()[:2]
            file.write(json.dumps({"id": entry["id"], "hypothesis": " ".join(words)}) + "\n")


def _score(case: Case, command: str) -> Records:
    _, family, options = command.split(" ", 2)
    for name, shift in (("h", 1), ("other", 2)):
        _write_hypotheses(case, family, name, shift)
    case.mm(
        f"score {{out}}/h.jsonl --data {{{family}}} --split valid --json {{out}}/s.json "
        f"--per-item {{out}}/o.jsonl {options}"
    )
    items = {f"item {key}": x for key, x in _items(case.out / "o.jsonl").items()}
    return {**case.json("s.json", "path"), **items}


def _gain(case: Case, command: str) -> Records:
    for name, shift in (("system", 1), ("text", 2), ("base", 3)) if "{out}" in command else ():
        _write_hypotheses(case, "videos", name, shift)
        case.mm(
            f"score {{out}}/{name}.jsonl --data {{videos}} --preset how2 --metrics rouge "
            f"--split valid --per-item {{out}}/{name}.items.jsonl"
        )
    case.mm(f"score {command.partition(' ')[2]} --json {{out}}/g.json")
    return case.json("g.json", "source", "message")


def _store(case: Case, printed: Printed) -> Records:
    if (case.out / "o.h5").exists():
        return records.of_store(case.out / "o.h5")
    volatile = ("created", "version", "written")
    return records.of_lines(x for x in printed.out if not any(word in x for word in volatile))


def _folder_made(case: Case, printed: Printed) -> Records:
    # names of machines and folders
    left_out = ("preprocess.log", "prepare.json", "*.lock")
    return records.of_folder(case.out / "made", leave_out=left_out)


def _tag(case: Case, command: str) -> Records:
    shutil.copytree(case.places["captions"], case.out / "made")
    case.mm("prepare upgrade {out}/made")
    printed = script(SCRIPTS / "tag_pos.py", *case.words("{out}/made --tagger rules"))
    assert printed.status == 0, printed.err[-3:]
    left_out = ("*.h5", "*.bin", "*.idx", "*.lock", "prepare.json")
    return records.of_folder(case.out / "made", leave_out=left_out)


def _converted(case: Case, printed: Printed) -> Records:
    """Vectors of sentences and an image by a converted embedding model."""
    from fairseq_mm.inference.embedder import load_embedder

    if not (case.out / "made").exists():
        return {}
    embedder = load_embedder(case.out / "made", device="cpu")
    texts = ["a red dog", "the cat sits"]
    images = [np.linspace(-1, 1, 5, dtype=np.float32)[None] ** 3]
    rows = [*embedder.embed_texts(texts), *embedder.embed_features(images)]
    return {name: {"vector": row} for name, row in zip([*texts, "image"], rows)}


READERS: dict[str, Callable[[Case, Printed], Records]] = {
    **dict.fromkeys(("caption", "tell", "summarize", "retrieve prompts"), _generated),
    "tell-compared": _generated,
    "tell-prompts": lambda case, printed: case.jsonl("hypothesis=prompt tokens score words"),
    "rank": _ranked,
    "embed": lambda case, printed: records.of_store(next(case.out.glob("*.h5"))),
    "retrieve nearest": _nearest,
    "retrieve plot": lambda case, printed: case.jsonl("kind x y", key="label"),
    "perplexity": lambda case, printed: case.json("o.json", "data", "checkpoints"),
    "inspect": _inspected,
    "store": _store,
    "prepare": _folder_made,
    "convert": _converted,
    "extract": lambda case, printed: records.of_store(case.out / "o.h5", with_rows=False),
}
SEVERAL = {"fairseq-": _run_fairseq, "score": _score, "gain": _gain, "tag": _tag, "doctor": _doctor}


def _run_command(case: Case, command: str) -> Records:
    for name, action in SEVERAL.items():
        if command.startswith(name):
            return action(case, command)
    name = next(name for name in READERS if f"{command} ".startswith(f"{name} "))
    arguments = command[len(name) :]
    printed = case.mm(f"{name.partition('-')[0]} {arguments} {OPTIONS.get(name, '')}")
    return READERS[name](case, printed)


# Python functions ----------------------------------------------------------------------------


def _texts(found: Any) -> Records:
    return {str(i): {"text": best.text} for i, (best, *_) in enumerate(found)}


def _scored_texts(found: Any) -> Records:
    return {str(i): {"text": best.text, "score": best.score} for i, (best, *_) in enumerate(found)}


def _caption(case: Case) -> Records:
    features = case.stored(*(f"valid{i}.jpg" for i in range(4)))
    return _scored_texts(case.load().generate(features, beam=3, max_len_b=12))


def _caption_images(case: Case) -> Records:
    options = {"weights": case.places["weights"]}
    if case.system.name == "mlbl_b_vectors":
        options["embedding"] = str(case.root / "captions/vse_images")
    paths = [Path(case.places["images"]) / f"valid{i}.jpg" for i in range(4)]
    return _texts(case.load(**options).generate(paths, beam=2, max_len_b=9))


def _caption_by_structure(case: Case) -> Records:
    captioner = case.load(
        embedding=case.root / "captions/vse_images",
        data=case.places["captions_images"],
        weights=case.places["weights"],
    )
    paths = [Path(case.places["images"]) / f"valid{i}.jpg" for i in range(2)]
    found = captioner.caption(paths, candidates=30, shortest=2, longest=5, top=2)
    return {
        str(i): {"text": x.captions[0].text, "score": x.captions[0].score, "nearest": x.nearest[0]}
        for i, x in enumerate(found)
    }


def _caption_by_ensemble(case: Case) -> Records:
    model = package.from_pretrained([case.folder, case.root / "captions/mlbl_b"], device="cpu")
    features = case.stored(*(f"valid{i}.jpg" for i in range(3)))
    return _scored_texts(model.generate(features, beam=3, max_len_b=12))


def _embed(case: Case) -> Records:
    from fairseq_mm.inference.embedder import load_embedder

    texts, names = ["a red dog runs", "the cat"], ["valid0.jpg", "valid1.jpg"]
    if case.system.name == "vse_images":
        embedder = load_embedder(case.folder, weights=case.places["weights"], device="cpu")
        images = embedder.embed_images([Path(case.places["images"]) / name for name in names])
    else:
        embedder = load_embedder(case.folder, device="cpu")
        images = embedder.embed_features(case.stored(*names))
    rows = [*embedder.embed_texts(texts), *images]
    return {name: {"vector": row} for name, row in zip([*texts, "image 0", "image 1"], rows)}


def _tell_images(case: Case) -> Records:
    paths = [Path(case.places["images"]) / f"valid1_{i}.jpg" for i in range(4)]
    model = case.load(weights=case.places["weights"])
    (story,) = model.generate([*paths, None], preset="beam", max_words_per_sentence=8)
    return {"0": {"text": "\n".join(story.sentences), "score": story.score}}


def _tell_albums(case: Case) -> Records:
    albums = [case.stored(*(f"valid{i}_{k}" for k in range(5))) for i in range(3)]
    found = case.load().generate(albums, preset="greedy", max_words_per_sentence=8)
    return {str(i): {"text": x.line, "score": x.score} for i, (x, *_) in enumerate(found)}


def _tell_prompts(case: Case) -> Records:
    prompts = ["[WP] You find a door .", "the old house"]
    return _texts(case.load().generate(prompts, preset="greedy", max_len_b=12, min_len=1))


def _tell_by_ensemble(case: Case) -> Records:
    model = package.from_pretrained([case.folder, case.root / "prompts/conv_story"], device="cpu")
    prompts = ["[ WP ] You find a door ."]
    return _texts(model.generate(prompts, preset="beam", max_len_b=12, min_len=1))


def _tell_without_prompt(case: Case) -> Records:
    return _texts(case.load().generate(n=3, preset="paper", max_len_b=12, min_len=1, seed=3))


def _summarize(case: Case) -> Records:
    has_dictionary = case.system.name not in WITHOUT_DICTIONARY
    model = case.load(**({} if has_dictionary else {"data": case.data}))
    transcripts = ["the dog runs on grass", "a big man in snow", "red cat blue dog sits"]
    if case.system.name in READS_NO_VIDEO:
        return _texts(model.generate(transcripts, beam=2, max_len_b=9))
    features = case.stored("valid0", "valid1", "valid2")
    inputs = [{"video": x, "transcript": y} for x, y in zip(features, transcripts)]
    return _scored_texts(model.generate(inputs, beam=2, max_len_b=9))


def _summarize_videos(case: Case) -> Records:
    inputs = [
        {"video": Path(case.places["clips"]) / f"video{i}.mp4", "transcript": text}
        for i, text in enumerate(("the dog runs on grass", None, "red cat blue dog"))
    ]
    return _texts(case.load().generate(inputs, beam=2, max_len_b=9))


PYTHON: dict[str, Callable[[Case], Records]] = {
    "python caption features": _caption,
    "python caption images": _caption_images,
    "python caption by structure": _caption_by_structure,
    "python ensemble": _caption_by_ensemble,
    "python embed": _embed,
    "python stories of images": _tell_albums,
    "python story of image files": _tell_images,
    "python stories": _tell_prompts,
    "python ensemble of stories": _tell_by_ensemble,
    "python language model": _tell_without_prompt,
    "python summaries": _summarize,
    "python summaries of videos": _summarize_videos,
}


# Reading of the tables -----------------------------------------------------------------------


class Entry(NamedTuple):
    """What is run of a system, or of a subcommand that loads no checkpoint."""

    system: str  # or the subcommand
    name: str
    commands: list[str]  # none for a Python function
    is_fast: bool
    exact: bool  # False if other versions of libraries give something else
    needs: str  # program or package that not every machine has; empty for none


NEEDS = {
    "vist meteor": "pycocoevalcap",
    "how2 content f1": "pycocoevalcap",
    "summarize videos": "av",
    "python summaries of videos": "av",
}


def _rows(table: str) -> Iterator[tuple[str, list[str], list[str], bool, list[str]]]:
    """Yield name, systems, systems of the fast suite, exactness and commands of each row."""
    for row in re.split(r"\n+(?=\S)", table.strip()):
        head, *commands = re.sub(r"\n {8}", " ", row).split("\n    ")
        match = re.fullmatch(r"(~?)(.+?):(.*?)(?:\[(.*)\])?", head)
        assert match is not None, head
        tilde, name, systems, fast = match.groups()
        yield name, systems.split(), (fast or "").split(), not tilde, commands


def _applies(systems: list[str], system: System) -> bool:
    with_it, _, without = " ".join(systems).partition("-")
    names = {"all", system.name, system.kind}
    names |= {"reads_no_video"} if system.name in READS_NO_VIDEO else set()
    return bool(names & {*with_it.split()}) and not names & {*without.split()}


def matrix(family: str) -> list[Entry]:
    """Return what is run of a family of systems, or of ``commands``."""
    if family == "commands":
        return [
            Entry(*name.split("/"), commands, bool(fast), exact, NEEDS.get(name.split("/")[1], ""))
            for name, _, fast, exact, commands in _rows(COMMANDS)
        ]
    return [
        Entry(system.name, name, commands, system.name in fast, exact, NEEDS.get(name, ""))
        for system in SYSTEMS.values()
        if system.family == family
        for name, systems, fast, exact, commands in _rows(TABLE)
        if _applies(systems, system)
    ]


def run(root: Path, entry: Entry) -> Records:
    """Return the output, made in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder).resolve()
        case = Case(root, SYSTEMS.get(entry.system), out)
        found = PYTHON[entry.name](case) if not entry.commands else {}
        for command in entry.commands:
            found = _run_command(case, command)
        return records.normalised(records.normalised(found, out), root)
