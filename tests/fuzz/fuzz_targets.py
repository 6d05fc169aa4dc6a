"""What is fuzzed: commands on small data and models, and the files of theirs that are damaged."""

import csv
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("golden", ".")]

from golden_files import DATA, unpack  # noqa: E402
from systems import FAMILIES  # noqa: E402
from toy_subwords import write_gpt2  # noqa: E402

from fairseq_mm.cli.main import main  # noqa: E402

CHECKPOINT = "checkpoint_best.pt"
STUDY = Path(__file__).parents[2] / "examples" / "human_evaluation" / "study.py"


class Target(NamedTuple):
    """
    Attributes:
        name: under which its inputs are counted.
        command: ``fairseq-mm``'s arguments in the folder of :func:`make_inputs`, or a whole command
            that begins with ``fairseq-generate`` or ``python``; ``{out}`` is an empty folder.
        files: by their paths in the folder, or patterns of them; one of them is damaged.
        is_slow: takes a second, and its turn comes once in eight rounds.
    """

    name: str
    command: str
    files: str
    is_slow: bool = False

    @property
    def looks_at_all(self) -> bool:
        return self.name.startswith("doctor")

    def words(self, out: str) -> list[str]:
        return shlex.split(self.command.replace("{out}", out))

    def paths(self, root: Path) -> list[str]:
        """
        Raises:
            ValueError: if a pattern has no file.
        """
        found = []
        for pattern in self.files.split():
            paths = sorted(
                p.relative_to(root).as_posix() for p in root.glob(pattern) if p.is_file()
            )
            if not paths:
                raise ValueError(f"{self.name}: {pattern}: no such file")
            found += paths
        return found


def make_inputs(root: Path) -> None:
    """Good inputs of each kind: the golden data and checkpoints, and what else commands read."""
    for name in (DATA, *FAMILIES):
        unpack(name, root)
    more = root / "more"
    more.mkdir()
    for family in ("captions", "stories", "videos"):
        _write_generated(root / DATA / family, more / f"{family}.jsonl")
        _write_generated(root / DATA / family, more / f"{family}_other.jsonl", shift=1)
    _write_lines(
        more / "prompt_stories.jsonl",
        [{"id": i, "prompt": f"[ WP ] door {i}", "story": f"the dog {i} runs"} for i in range(6)],
    )
    _write_lines(
        more / "poor_stories.jsonl",
        [{"id": i, "prompt": f"[ WP ] door {i}", "story": f"a cat {i} sits"} for i in range(6)],
    )
    scores = [{"id": f"valid{i}.jpg", "cider": i / 7, "bleu": 0.5} for i in range(7)]
    _write_lines(more / "scores.jsonl", scores)
    measured = f"--data {root}/data/captions --split valid --metrics bleu,cider"
    main(f"score {more}/captions.jsonl {measured} --json {more}/result.json".split())
    _write_lines(
        more / "items.jsonl",
        [{"id": f"valid{i}", "rouge1": 0.5, "rouge2": 0.25, "rouge_l": i / 9} for i in range(4)],
    )
    (more / "train.log").write_text(
        '{"epoch": 1, "train_loss": "3.1", "train_num_updates": "5"}\n'
        '{"epoch": 1, "valid_loss": "3.0", "valid_num_updates": "5"}\n'
    )
    _write_lines(
        more / "images.jsonl", [{"id": f"i{i}", "image": f"valid{i}.jpg"} for i in range(3)]
    )
    _write_lines(more / "inputs.jsonl", [{"id": i, "prompt": "you find a door"} for i in range(2)])
    (more / "prompts.txt").write_text("[WP] You find a door .\nthe old house\n")
    (more / "vectors.txt").write_text("2 3\nred 0.1 0.2 0.3\ndog 1 2 3\n")
    np.save(more / "grid.npy", np.ones((2, 4, 5), np.float32))
    np.savez(more / "rows.npz", a=np.ones((2, 5), np.float32))
    (more / "two_ids.txt").write_text("a\nb\n")
    shutil.copy(root / DATA / "captions/features.h5", more / "store.old.h5")
    write_gpt2(more)
    _write_sheets(more / "sheets")
    for name in ("captions", "videos", "stories"):
        (root / DATA / name / "prepare.json").write_text(json.dumps({"kind": name, "counts": {}}))


def _write_generated(data: Path, path: Path, *, shift: int = 0) -> None:
    entries = [json.loads(x) for x in (data / "valid.references.jsonl").read_text().splitlines()]
    others = entries[shift:] + entries[:shift]
    _write_lines(
        path,
        [{"id": a["id"], "hypothesis": b["references"][0]} for a, b in zip(entries, others)],
    )


def _write_lines(path: Path, entries: list[dict]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def _write_sheets(folder: Path) -> None:
    """A study with its answers."""
    more = folder.parent
    files = [str(more / name) for name in ("prompt_stories.jsonl", "poor_stories.jsonl")]
    words = [str(STUDY), "pairing", "--stories", *files, "--count", "3", "--output", str(folder)]
    subprocess.run([sys.executable, *words], check=True)
    key = json.loads((folder / "key.json").read_text())["questions"]
    with open(folder / "answers.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["annotator", "question", "story_1", "story_2", "story_3"])
        writer.writerows([i, name, *"ABC"] for i in range(2) for name in key)


GENERATE = (
    "fairseq-generate data/{data} --task {task} --path {model}/checkpoint_best.pt --cpu "
    "--batch-size 3 --num-workers 0 --required-batch-size-multiple 1 --gen-subset valid "
    "--beam 1 --max-len-b 5"
)
RUN = "--device cpu --jsonl --output {out}/o.jsonl"
STORED = "--features data/captions/features.h5 valid0.jpg valid1.jpg"
SHORT = "--beam 1 --max-len-b 4"


def _folder(name: str, ending: str = "*") -> str:
    """The data folder but for what only training reads."""
    return f"data/{name}/valid{ending} data/{name}/dict*.txt"


def _targets() -> Iterator[Target]:
    own, sets = "data/releases/own", "data/releases"
    yield Target("store info", "store info more/store.old.h5", "more/store.old.h5")
    yield Target("store verify", "store verify more/store.old.h5", "more/store.old.h5")
    yield Target("store", "store info data/captions/features.h5", "data/captions/features.h5")
    yield Target(
        "store merge",
        f"store merge data/captions/features.h5 {own}/features.h5 {{out}}/o.h5",
        f"data/captions/features.h5 {own}/features.h5",
    )
    yield Target(
        "store convert",
        "store convert data/videos/features.h5 {out}/o.h5 --pool mean --dtype float16",
        "data/videos/features.h5",
    )
    for source, ids in (
        (f"{own}/array.npy", f"--ids {own}/array_ids.txt"),
        ("more/grid.npy", "--ids more/two_ids.txt"),
        ("more/rows.npz", ""),
    ):
        yield Target(
            "store import",
            f"store import {source} {{out}}/o.h5 {ids}",
            f"{source} {source} {ids.replace('--ids', '')}",
        )
    for kind, options in (
        ("captions", "--threshold 1 --valid-size 2"),
        ("prompts", "--valid-size 2 --source-threshold 1 --target-threshold 1"),
        ("stories", "--valid-size 1 --threshold 1"),
        ("videos", "--valid-size 2"),
    ):
        yield Target(
            f"prepare {kind}",
            f"prepare {kind} {own}/{kind}.jsonl {options} --output {{out}}/made",
            f"{own}/{kind}.jsonl" + (f" {own}/b.srt" if kind == "videos" else ""),
        )
    for name, words, files in (
        ("flickr8k", f"{sets}/flickr8k", f"{sets}/flickr8k/*"),
        ("flickr30k", f"{sets}/flickr30k/dataset_flickr30k.json", f"{sets}/flickr30k/*"),
        (
            "coco",
            f"{sets}/coco/captions_train2014.json {sets}/coco/captions_val2014.json --split m_rnn "
            f"--split-ids valid={sets}/coco/valid.txt test={sets}/coco/test.txt",
            f"{sets}/coco/*.json {sets}/coco/*",
        ),
        (
            "iapr_tc12",
            f"{sets}/iapr_tc12/annotations --split-ids train={sets}/iapr_tc12/train.txt "
            f"test={sets}/iapr_tc12/test.txt",
            f"{sets}/iapr_tc12/**/*",
        ),
        ("vist", f"{sets}/vist", f"{sets}/vist/*story*"),
    ):
        yield Target(
            f"prepare {name}", f"prepare {name} {words} --threshold 1 --output {{out}}/made", files
        )
    yield Target(
        "prepare writingprompts",
        f"prepare writingprompts {sets}/writingprompts --source-threshold 1 --target-threshold 1 "
        "--output {out}/made",
        f"{sets}/writingprompts/*",
    )
    yield Target(
        "prepare how2",
        f"prepare how2 {sets}/how2/text --features {sets}/how2/actions --output {{out}}/made",
        f"{sets}/how2/text/*/* {sets}/how2/actions/a.npy {sets}/how2/actions/b.npy",
    )
    for family, preset in (
        ("captions", "--metrics bleu,rouge_l,cider,diversity,novelty"),
        ("stories", "--preset vist --metrics bleu,rouge_l,cider,sentences,diversity"),
        ("videos", "--preset how2 --metrics rouge,bleu"),
    ):
        yield Target(
            f"score {family}",
            f"score more/{family}.jsonl --data data/{family} --split valid {preset} "
            "--json {out}/s.json",
            f"more/{family}.jsonl more/{family}.jsonl data/{family}/valid.references.jsonl "
            f"data/{family}/valid.visual_ids",
        )
    yield Target(
        "score compare",
        "score more/captions.jsonl --data data/captions --split valid --metrics bleu "
        "--compare more/captions_other.jsonl --bootstrap 10",
        "more/captions_other.jsonl",
    )
    yield Target(
        "score --system",
        "score --system more/items.jsonl --text-only more/items.jsonl --baseline "
        "62.3,46.1,58.2 --bootstrap 10",
        "more/items.jsonl",
    )
    yield Target(
        "report",
        "report --data data/captions --split valid --hypotheses more/captions.jsonl --scores "
        "more/scores.jsonl --result more/result.json --training-log more/train.log "
        "--images data/images --limit 3 --output {out}/page.html",
        "more/scores.jsonl more/result.json more/result.json more/train.log more/captions.jsonl "
        "data/captions/valid.references.jsonl data/images/valid1.jpg",
    )
    for kind, options in (
        ("pairing", "--stories more/prompt_stories.jsonl more/poor_stories.jsonl"),
        ("preference", "--a more/prompt_stories.jsonl --b more/poor_stories.jsonl"),
    ):
        yield Target(
            f"study {kind}",
            f"python {STUDY} {kind} {options} --count 3 --output {{out}}/s",
            "more/prompt_stories.jsonl",
        )
    yield Target(
        "study score",
        f"python {STUDY} score more/sheets more/sheets/answers.csv --bootstrap 20",
        "more/sheets/key.json more/sheets/key.json more/sheets/answers.csv",
    )
    yield Target(
        "retrieve prompts",
        "retrieve prompts data/prompts --split valid --words 10 --output {out}/o.jsonl",
        "data/prompts/text/*",
    )
    for kind, model, options in (
        ("captions", "captions/m_rnn", ""),
        ("stories", "stories/glac", ""),
        ("prompts", "prompts/conv_story", ""),
        ("videos", "videos/vg_t5", "--features data/videos/features.h5"),
    ):
        yield Target(
            f"doctor {kind}",
            f"doctor --data data/{kind} {options}",
            f"data/{kind}/* data/{kind}/*.idx data/{kind}/*.idx data/{kind}/text/*",
        )
        task = {"captions": "multimodal_captioning", "stories": "visual_storytelling"}
        task |= {"prompts": "hierarchical_story", "videos": "video_summarization"}
        yield Target(
            f"fairseq-generate {kind}",
            GENERATE.format(data=kind, task=task[kind], model=model),
            f"{_folder(kind)} {model}/checkpoint_best.pt",
            is_slow=True,
        )
    for model in ("captions/vse_gru", "prompts/conv_story", "captions/sc_nlm"):
        yield Target("doctor checkpoint", f"doctor --checkpoint {model}", f"{model}/{CHECKPOINT}")
    yield from _of_checkpoints()
    yield Target(
        "extract",
        "extract more/images.jsonl --root data/images --model squeezenet1_1 --weights "
        "data/extractor/squeezenet.pth --resize squash --size 33 --device cpu --output {out}/o.h5",
        "more/images.jsonl more/images.jsonl data/images/valid0.jpg data/images/valid1.jpg",
    )
    yield Target(
        "convert kiros",
        f"convert {sets}/kiros/f8k.npz {{out}}/made",
        f"{sets}/kiros/f8k.npz {sets}/kiros/*",
        is_slow=True,
    )
    yield Target(
        "convert vse++",
        f"convert {sets}/vsepp/model_best.pth.tar {{out}}/made --vocabulary "
        f"{sets}/vsepp/vocabulary.pkl",
        f"{sets}/vsepp/*",
        is_slow=True,
    )
    yield Target(
        "convert stories",
        f"convert {sets}/fconv/checkpoint.pt {{out}}/made.pt --data data/prompts",
        f"{sets}/fconv/checkpoint.pt data/prompts/dict*",
    )


def _of_checkpoints() -> Iterator[Target]:
    for name, model, command in (
        ("caption", "captions/m_rnn", f"{STORED} {SHORT}"),
        ("caption", "captions/mlbl_f", f"{STORED} {SHORT}"),
        (
            "tell",
            "stories/glac",
            "--data data/stories --split valid --limit 1 --max-words-per-sentence 3",
        ),
        (
            "tell",
            "stories/transtory_xl",
            "--data data/stories --split valid --limit 1 --max-words-per-sentence 3",
        ),
        (
            "tell",
            "prompts/conv_story",
            f"--prompts more/prompts.txt {SHORT} --min-len 1 --preset beam",
        ),
        ("tell", "prompts/gcnn_lm_stories", f"{SHORT} --min-len 1 --preset greedy"),
        ("summarize", "videos/pointer_generator", f"data/videos/valid.transcripts.jsonl {SHORT}"),
        (
            "summarize",
            "videos/vg_t5",
            f"data/videos/valid.transcripts.jsonl --features data/videos/features.h5 {SHORT}",
        ),
    ):
        more = {
            "captions": "data/captions/features.h5",
            "prompts": "more/prompts.txt",
            "stories": "data/stories/valid.* data/stories/features.h5",
            "videos": "data/videos/valid.transcripts.jsonl data/videos/features.h5",
        }
        family = model.split("/")[0]
        yield Target(
            f"{name} {model.split('/')[1]}",
            f"{name} --checkpoint {model} {command} {RUN}",
            f"{model}/{CHECKPOINT} {model}/{CHECKPOINT} {more[family]}",
        )
    yield Target(
        "generate",
        f"generate more/inputs.jsonl --checkpoint prompts/conv_story {SHORT} --min-len 1 "
        "--preset beam --device cpu --output {out}/o.jsonl",
        "more/inputs.jsonl",
    )
    yield Target(
        "rank",
        "rank data/captions --checkpoint captions/vse_gru --split valid --device cpu "
        "--output {out}",
        f"captions/vse_gru/{CHECKPOINT} {_folder('captions')} data/captions/features.h5",
    )
    yield Target(
        "embed",
        "embed data/captions --checkpoint captions/vse_bow --split valid --of images sentences "
        "words --device cpu --output {out}/v.h5",
        f"captions/vse_bow/{CHECKPOINT} {_folder('captions')} data/captions/features.h5",
    )
    yield Target(
        "perplexity",
        "perplexity data/stories --checkpoint stories/glac --split valid --device cpu",
        f"stories/glac/{CHECKPOINT} {_folder('stories')} data/stories/features.h5",
    )
    yield Target(
        "inspect",
        "inspect --checkpoint prompts/conv_story_fusion --device cpu --output {out}/o.jsonl "
        "data/prompts --split valid --line 1 --words 3",
        f"prompts/conv_story_fusion/{CHECKPOINT} {_folder('prompts')}",
        is_slow=True,
    )
    yield Target(
        "pretrained-options",
        "pretrained-options videos/bart/checkpoint_best.pt",
        f"videos/bart/{CHECKPOINT}",
    )


TARGETS = list(_targets())
