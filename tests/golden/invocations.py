"""How every system is run today: a name of what is done -> the command or call that does it.

Names, ids and fields of outputs are kept in ``tests/data/golden/outputs``. Where an option, a
subcommand, a method or the name of a field changes, only this table does.
"""

import json
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import golden_records as records
from golden_commands import Printed, fairseq_mm, generate, script, validate
from golden_files import DATA
from golden_records import Records
from systems import (
    CAPTIONER,
    EMBEDDING,
    FAMILIES,
    LANGUAGE_MODEL,
    STORY,
    STRUCTURED,
    SUMMARIZER,
    SYSTEMS,
    VISUAL_STORY,
    WITHOUT_DICTIONARY,
    System,
)

import fairseq_mm as package
from fairseq_mm.data.feature_store import FeatureStore

SCRIPTS = Path(package.__file__).parents[1] / "scripts"
CHECKPOINT = "checkpoint_best.pt"
# where everything runs; the outputs that are kept are a CPU's
DEVICE = "cpu"
READS_NO_VIDEO = (
    *("t5", "t5_gated", "pointer_generator", "pointer_generator_coverage"),
    *("summary_lstm", "summary_transformer", "bart"),
)


class Case:
    """A system in the folder where everything was unpacked.

    Args:
        root: that folder.
        system: None for commands that load no checkpoint.
        out: an empty folder.
    """

    def __init__(self, root: Path, system: Optional[System], out: Path) -> None:
        self.root = root
        self.out = out
        data = root / DATA
        self.places: dict[str, str] = {
            "out": str(out),
            "root": str(root),
            "images": str(data / "images"),
            "clips": str(data / "clips"),
            "releases": str(data / "releases"),
            "weights": str(data / "extractor" / "squeezenet.pth"),
        }
        self.places.update({name: str(data / name) for name in ("captions", "prompts", "videos")})
        self.places["captions_images"] = str(data / "captions_images")
        self.places["stories"] = str(data / "stories")
        if system is not None:
            self.system = system
            self.folder = root / system.family / system.name
            self.data = data / system.data
            self.places.update(
                model=str(self.folder),
                checkpoint=str(self.folder / CHECKPOINT),
                data=str(self.data),
                features=str(self.data / "features.h5"),
                # fairseq's own models find their dictionaries there
                dictionaries=f"--data {self.data}" if system.name in WITHOUT_DICTIONARY else "",
            )
            if system.kind == STRUCTURED or system.name == "mlbl_b_vectors":
                both = f"{self.data / 'train.h5'}:{self.data / 'valid.h5'}"
                self.places["features"] = both

    def words(self, template: str) -> list[str]:
        """Arguments of a template; quoted ones keep their spaces."""
        text = template.format(**self.places)
        return shlex.split(text.replace("--device cpu", f"--device {DEVICE}"))

    def mm(self, template: str) -> Printed:
        """
        Raises:
            AssertionError: with what it printed, if the command fails.
        """
        words = self.words(template)
        printed = fairseq_mm(*words)
        assert printed.status == 0, f"{' '.join(words)}: {printed.err[-3:]}"
        return printed


class Invocation(NamedTuple):
    """
    Attributes:
        name: of the outputs.
        applies: to a system.
        run: on a case.
        fast: systems with which it belongs to the fast suite.
        exact: whether other versions of PyTorch, torchvision and Pillow give the same, up to the
            tolerance; not where numbers are drawn or images are decoded and scaled.
    """

    name: str
    applies: Callable[[System], bool]
    run: Callable[[Case], Records]
    fast: tuple[str, ...] = ()
    exact: bool = True


def of_kind(*kinds: str, but: tuple[str, ...] = ()) -> Callable[[System], bool]:
    return lambda system: system.kind in kinds and system.name not in but


def named(*names: str) -> Callable[[System], bool]:
    return lambda system: system.name in names


# fairseq's commands --------------------------------------------------------------------------

TASKS = {
    CAPTIONER: "multimodal_captioning",
    EMBEDDING: "multimodal_captioning",
    STRUCTURED: "multimodal_captioning",
    VISUAL_STORY: "visual_storytelling",
    STORY: "hierarchical_story",
    LANGUAGE_MODEL: "language_modeling",
    SUMMARIZER: "video_summarization",
}
FEATURES = {CAPTIONER, EMBEDDING, STRUCTURED, VISUAL_STORY, SUMMARIZER}
GENERATORS = of_kind(CAPTIONER, STRUCTURED, VISUAL_STORY, STORY, SUMMARIZER)


def _fairseq_arguments(case: Case, template: str) -> list[str]:
    kind = case.system.kind
    arguments = [str(case.data), "--task", TASKS[kind], "--path", case.places["checkpoint"]]
    arguments += ["--cpu"] if DEVICE == "cpu" else []
    arguments += ["--batch-size", "3", "--num-workers", "0"]
    arguments += ["--required-batch-size-multiple", "1"]
    if ":" in case.places["features"]:
        arguments += ["--features", case.places["features"]]
    return [*arguments, *case.words(template)]


def generated(template: str, *, with_positions: bool = False) -> Callable[[Case], Records]:
    def run(case: Case) -> Records:
        lines = generate(*_fairseq_arguments(case, f"--gen-subset valid --seed 7 {template}"))
        return records.of_generate(lines, with_positions=with_positions)

    return run


def validated(template: str) -> Callable[[Case], Records]:
    def run(case: Case) -> Records:
        return {"valid": validate(*_fairseq_arguments(case, f"--valid-subset valid {template}"))}

    return run


# Each kind's own length of texts.
LENGTH = {
    CAPTIONER: "--max-len-b 12",
    STRUCTURED: "--max-len-b 12",
    VISUAL_STORY: "--max-words-per-sentence 8",
    STORY: "--min-len 1 --max-len-b 20",
    SUMMARIZER: "--max-len-b 20 --no-repeat-ngram-size 3",
}


def generated_with_length(template: str, **options: Any) -> Callable[[Case], Records]:
    return lambda case: generated(f"{LENGTH[case.system.kind]} {template}", **options)(case)


# fairseq-mm ----------------------------------------------------------------------------------


def command(template: str, read: Callable[[Case, Printed], Records]) -> Callable[[Case], Records]:
    return lambda case: read(case, case.mm(template))


def jsonl(fields: Mapping[str, str], **options: Any) -> Callable[[Case, Printed], Records]:
    return lambda case, printed: records.of_jsonl(case.out / "o.jsonl", fields=fields, **options)


def json_file(name: str, *, drop: tuple[str, ...] = ()) -> Callable[[Case, Printed], Records]:
    return lambda case, printed: records.of_json(case.out / name, drop=drop)


def printed_lines(case: Case, printed: Printed) -> Records:
    return records.of_lines(printed.out)


CAPTION_FIELDS = {
    "text": "hypothesis", "score": "score", "nearest": "nearest", "best": "hypotheses"
}  # fmt: skip
VISUAL_STORY_FIELDS = {
    "text": "hypothesis",
    "score": "score",
    "sentences": "sentences",
    "words": "words",
    "system": "system",
    "item": "item",
}
STORY_FIELDS = {
    "text": "hypothesis",
    "tokens": "tokens",
    "score": "score",
    "words": "words",
    "prompt": "prompt",
    "prompt_tokens": "prompt_tokens",
    "prompt_score": "prompt_score",
    "unknown_words": "unknown_words",
    "prompt_words_cut": "prompt_words_cut",
}
PROMPT_FIELDS = {name: name for name in ("tokens", "score", "words")} | {"prompt": "hypothesis"}
SUMMARY_FIELDS = {
    "text": "hypothesis",
    "score": "score",
    "transcript_tokens": "transcript_tokens",
    "transcript_tokens_cut": "transcript_tokens_cut",
    "frames": "frames",
    "frames_cut": "frames_cut",
}
INSPECTED = {
    name: name
    for name in (
        *("line", "position", "word", "log_prob", "log_probability", "words", "score", "layers"),
        *("g1", "g2", "prompt", "attention", "self_attention", "image_weights", "slice_weights"),
        *("positions", "sentence", "sentences", "hypothesis", "reference", "transcript_available"),
        *("item", "frames", "video_share", "weights", "source", "text"),
    )
}

STORED = "--features {features} valid0.jpg valid1.jpg valid2.jpg valid3.jpg"
IMAGES = "{images}/valid0.jpg {images}/valid1.jpg {images}/valid2.jpg --weights {weights}"
OUT = "--device cpu --jsonl --output {out}/o.jsonl"


def captioned(template: str) -> Callable[[Case], Records]:
    return command(f"caption --checkpoint {{model}} {OUT} {template}", jsonl(CAPTION_FIELDS))


STRUCTURED_OPTIONS = (
    "--embedding {root}/captions/vse_images --weights {weights} --data {captions_images} "
    "--candidates 30 --shortest 2 --longest 5 --top 2"
)


def told_of_images(template: str) -> Callable[[Case], Records]:
    return command(f"tell --checkpoint {{model}} {OUT} {template}", jsonl(VISUAL_STORY_FIELDS))


SPLIT = "{data} --split valid --max-words-per-sentence 8"
ALBUM = " ".join(f"{{images}}/valid1_{i}.jpg" for i in range(5))


def hypotheses(template: str) -> Callable[[Case], Records]:
    return command(
        f"tell --checkpoint {{model}} {{dictionaries}} {OUT} {template}", jsonl(STORY_FIELDS)
    )


PROMPTS = '--prompt "[WP] You find a door ." --prompt "the old zebra house in a"'


def summarized(template: str) -> Callable[[Case], Records]:
    return command(
        f"summarize --checkpoint {{model}} {{dictionaries}} {OUT} {template}", jsonl(SUMMARY_FIELDS)
    )


def _transcripts(case: Case) -> str:
    reads_video = case.system.name not in READS_NO_VIDEO
    return "{data} --split valid" + (" --features {features}" if reads_video else "")


def summarized_split(template: str) -> Callable[[Case], Records]:
    return lambda case: summarized(f"{_transcripts(case)} {template}")(case)


def ranked(case: Case) -> Records:
    case.mm(
        "rank {data} --checkpoint {checkpoint} --split valid --max-images 4 --device cpu "
        "--output {out}"
        + (" --marginal-images 3 --shortlist 2" if case.system.kind == CAPTIONER else "")
    )
    found = records.of_json(case.out / "ranks.json", drop=("curves", "chance"))
    ranks: dict[str, dict[str, Any]] = {}
    for record in records.of_jsonl(
        case.out / "ranks.jsonl", fields={"task": "task", "id": "id", "rank": "rank"}
    ).values():
        ranks.setdefault(str(record["task"]), {})[str(record["id"])] = record["rank"]
    return {**found, **ranks}


def ranked_stories(extra: str) -> Callable[[Case], Records]:
    def run(case: Case) -> Records:
        case.mm(
            f"rank {{data}} --checkpoint {{checkpoint}} --split valid --device cpu "
            f"--draws 2 --output {{out}} {extra}"
        )
        fields = {name: name for name in ("rank", "ranks", "score", "best_other")}
        stories = records.of_jsonl(case.out / "stories.jsonl", fields=fields)
        return {**records.of_json(case.out / "ranking.json", drop=("scores_of",)), **stories}

    return run


PERPLEXITY = (
    "perplexity {data} --checkpoint {checkpoint} --split valid --device cpu --json {out}/o.json"
)


def perplexity(template: str) -> Callable[[Case], Records]:
    return command(f"{PERPLEXITY} {template}", json_file("o.json", drop=("data", "checkpoints")))


def inspected(template: str, *, key: str = "id") -> Callable[[Case], Records]:
    return command(
        f"inspect --checkpoint {{checkpoint}} --device cpu --output {{out}}/o.jsonl {template}",
        lambda case, printed: _everything(case.out / "o.jsonl"),
    )


def _everything(path: Path) -> Records:
    """All fields of JSON lines but those that only say where the data came from."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    drop = {*records.VOLATILE, "checkpoint", "options", "data"}
    return {
        str(i): {key: value for key, value in entry.items() if key not in drop}
        for i, entry in enumerate(found)
    }


def embedded(case: Case) -> Records:
    case.mm(
        "embed {data} --checkpoint {model} --split valid --of images sentences words --device cpu "
        "--output {out}/v.h5"
    )
    return records.of_store(case.out / "v.h5")


def nearest(template: str) -> Callable[[Case], Records]:
    def run(case: Case) -> Records:
        case.mm("embed {data} --checkpoint {model} --split valid --device cpu --output {out}/v.h5")
        printed = case.mm(
            "retrieve nearest --store {out}/v.h5 --checkpoint {model} --data {data} --device cpu "
            f"--top 4 --jsonl {template}"
        )
        (case.out / "o.jsonl").write_text("\n".join(printed.out))
        fields = {name: name for name in ("rank", "score", "distance_to_mean", "text")}
        return records.of_jsonl(case.out / "o.jsonl", fields=fields)

    return run


def plotted(case: Case) -> Records:
    case.mm("embed {data} --checkpoint {model} --split valid --device cpu --output {out}/v.h5")
    case.mm(
        "retrieve plot --store {out}/v.h5 --checkpoint {model} --near 'a red dog' --near 'cat' "
        "--word red --word blue --top 2 --device cpu --output {out}/p.html --jsonl {out}/o.jsonl"
    )
    fields = {name: name for name in ("kind", "x", "y")}
    return records.of_jsonl(case.out / "o.jsonl", fields=fields, key="label")


def doctored(case: Case) -> Records:
    """What it says of the data and the checkpoint; what it says of the machine is left out."""
    words = case.words("doctor --data {data} --checkpoint {checkpoint}")
    if ":" in case.places["features"]:
        words += ["--features", case.places["features"]]
    printed = fairseq_mm(*words)
    about = [line for line in printed.out if _is_about_data(line, case)]
    return records.of_lines(about)


def _is_about_data(line: str, case: Case) -> bool:
    words = line.split()
    return len(words) > 1 and (
        str(case.root) in words[1]
        or words[1].rstrip(":") in ("train", "valid", "test", "checkpoint", "subwords", "features")
    )


# Python --------------------------------------------------------------------------------------


def _loaded(case: Case, **options: Any) -> Any:
    return package.from_pretrained(case.folder, device=DEVICE, **options)


def _texts(texts: list[str]) -> Records:
    return {str(i): {"text": text} for i, text in enumerate(texts)}


def _best(generated: list[list[Any]]) -> Records:
    return _texts([best.text for best, *_ in generated])


def _stored(case: Case, *keys: str) -> list[Any]:
    store = FeatureStore(case.places["features"])
    return [store.read(key) for key in keys]


def _first_images(count: int) -> list[str]:
    return [f"valid{i}.jpg" for i in range(count)]


def python_caption(case: Case) -> Records:
    features = _stored(case, *_first_images(4))
    return _hypotheses(_loaded(case).generate(features, beam=3, max_len_b=12))


def _hypotheses(found: Any) -> Records:
    return {str(i): {"text": x.text, "score": x.score} for i, (x, *_) in enumerate(found)}


def python_caption_images(case: Case) -> Records:
    paths = [Path(case.places["images"]) / f"valid{i}.jpg" for i in range(4)]
    options = {"weights": case.places["weights"]}
    if case.system.name == "mlbl_b_vectors":
        options["embedding"] = str(case.root / "captions/vse_images")
    found = _loaded(case, **options).generate(paths, beam=2, max_len_b=9)
    return _texts([best.text for best, *_ in found])


def python_caption_by_structure(case: Case) -> Records:
    captioner = _loaded(
        case,
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


def python_ensemble(*others: str) -> Callable[[Case], Records]:
    def run(case: Case) -> Records:
        paths = [case.folder, *(case.root / case.system.family / name for name in others)]
        model = package.from_pretrained(paths, device=DEVICE)
        if case.system.kind == STORY:
            prompts = ["[ WP ] You find a door ."]
            return _best(model.generate(prompts, preset="beam", max_len_b=12, min_len=1))
        features = _stored(case, *_first_images(3))
        return _hypotheses(model.generate(features, beam=3, max_len_b=12))

    return run


def python_embed(case: Case) -> Records:
    from fairseq_mm.inference.embedder import load_embedder

    texts = ["a red dog runs", "the cat"]
    if case.system.name == "vse_images":
        embedder = load_embedder(case.folder, weights=case.places["weights"], device=DEVICE)
        paths = [Path(case.places["images"]) / name for name in _first_images(2)]
        images = embedder.embed_images(paths)
    else:
        embedder = load_embedder(case.folder, device=DEVICE)
        images = embedder.embed_features(_stored(case, *_first_images(2)))
    sentences = embedder.embed_texts(texts)
    return {
        **{text: {"vector": row} for text, row in zip(texts, sentences)},
        **{f"image {i}": {"vector": row} for i, row in enumerate(images)},
    }


def python_tell_images(case: Case) -> Records:
    paths = [Path(case.places["images"]) / f"valid1_{i}.jpg" for i in range(5)]
    model = _loaded(case, weights=case.places["weights"])
    (story,) = model.generate([*paths[:4], None], preset="beam", max_words_per_sentence=8)
    return {"0": {"text": "\n".join(story.sentences), "score": story.score}}


def python_visual_stories(case: Case) -> Records:
    albums = [_stored(case, *(f"valid{i}_{k}" for k in range(5))) for i in range(3)]
    found = _loaded(case).generate(albums, preset="greedy", max_words_per_sentence=8)
    return {str(i): {"text": x.line, "score": x.score} for i, (x, *_) in enumerate(found)}


def python_stories(case: Case) -> Records:
    model = _loaded(case)
    prompts = ["[WP] You find a door .", "the old house"]
    return _best(model.generate(prompts, preset="greedy", max_len_b=12, min_len=1))


def python_language_model(case: Case) -> Records:
    model = _loaded(case)
    return _best(model.generate(n=3, preset="paper", max_len_b=12, min_len=1, seed=3))


def python_summaries(case: Case) -> Records:
    has_dictionary = case.system.name not in WITHOUT_DICTIONARY
    model = _loaded(case, **({} if has_dictionary else {"data": case.data}))
    transcripts = ["the dog runs on grass", "a big man in snow", "red cat blue dog sits"]
    inputs: list[Any] = transcripts
    reads_video = case.system.name not in READS_NO_VIDEO
    if reads_video:
        features = _stored(case, *(f"valid{i}" for i in range(len(transcripts))))
        inputs = [{"video": x, "transcript": y} for x, y in zip(features, transcripts)]
    found = [best for best, *_ in model.generate(inputs, beam=2, max_len_b=9)]
    if not reads_video:
        return _texts([best.text for best in found])
    return {str(i): {"text": x.text, "score": x.score} for i, x in enumerate(found)}


def python_summaries_of_videos(case: Case) -> Records:
    inputs = [
        {"video": Path(case.places["clips"]) / f"video{i}.mp4", "transcript": text}
        for i, text in enumerate(("the dog runs on grass", None, "red cat blue dog"))
    ]
    found = _loaded(case).generate(inputs, beam=2, max_len_b=9)
    return _texts([best.text for best, *_ in found])


# Commands that load no checkpoint ------------------------------------------------------------

HYPOTHESES = {
    "captions": "valid{i}.jpg",
    "stories": "\t".join(f"valid{{i}}_{k}" for k in range(5)),
    "videos": "valid{i}",
}


def _write_hypotheses(case: Case, family: str, name: str, shift: int) -> None:
    """The references of another item, each without a word, as generated texts."""
    data = Path(case.places[family])
    entries = [
        json.loads(line) for line in (data / "valid.references.jsonl").read_text().splitlines()
    ]
    stories = {}
    if family == "stories":
        lines = (data / "text" / "valid.txt").read_text().splitlines()
        ids = (data / "valid.visual_ids").read_text().splitlines()
        stories = dict(zip(ids, lines))
    lines = []
    for i, entry in enumerate(entries):
        other = entries[(i + shift) % len(entries)]
        text = stories.get(other["id"], other["references"][-1])
        words = text.split()
        words = (
            words[: len(words) // 2]
            + words[len(words) // 2 + 1 :]
            + entry["references"][0].split()[:2]
            if family != "stories"
            else words
        )
        lines.append(json.dumps({"id": entry["id"], "hypothesis": " ".join(words)}))
    (case.out / name).write_text("\n".join(lines) + "\n")


def scored(family: str, template: str) -> Callable[[Case], Records]:
    def run(case: Case) -> Records:
        _write_hypotheses(case, family, "h.jsonl", 1)
        _write_hypotheses(case, family, "other.jsonl", 2)
        case.mm(
            f"score {{out}}/h.jsonl --data {{{family}}} --split valid --json {{out}}/s.json "
            f"--per-item {{out}}/o.jsonl {template}"
        )
        content = records.of_json(case.out / "s.json", drop=("path",))
        return {**content, **{f"item {k}": v for k, v in _items(case.out / "o.jsonl").items()}}

    return run


def _items(path: Path) -> Records:
    found: Records = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        name = str(entry.pop("id"))
        found[name] = {k: v for k, v in entry.items() if k not in ("hypothesis", "references")}
    return found


def gained(case: Case) -> Records:
    for name, shift in (("system", 1), ("text", 2), ("base", 3)):
        _write_hypotheses(case, "videos", f"{name}.jsonl", shift)
        case.mm(
            f"score {{out}}/{name}.jsonl --data {{videos}} --preset how2 --metrics rouge "
            f"--split valid --per-item {{out}}/{name}.items.jsonl"
        )
    case.mm(
        "score --system {out}/system.items.jsonl --text-only {out}/text.items.jsonl "
        "--baseline {out}/base.items.jsonl --bootstrap 50 --json {out}/g.json"
    )
    return records.of_json(case.out / "g.json", drop=("source", "message"))


def gained_by_figures(case: Case) -> Records:
    case.mm(
        "score --system 68.0,51.4,63.3 --text-only 64.0,46.4,58.9 --baseline 62.3,46.1,58.2 "
        "--json {out}/g.json"
    )
    return records.of_json(case.out / "g.json", drop=("source", "message"))


def store(action: str, *, makes: str = "o.h5") -> Callable[[Case], Records]:
    def run(case: Case) -> Records:
        printed = case.mm(f"store {action}")
        if (case.out / makes).exists():
            return records.of_store(case.out / makes)
        keep = ("created", "version", "written")
        lines = [line for line in printed.out if not any(word in line for word in keep)]
        return records.of_lines(lines)

    return run


# names of machines and folders, and what the tools of the day say
NOT_COMPARED = ("preprocess.log", "prepare.json", "*.lock")


def _folder_made(case: Case) -> Records:
    return records.of_folder(case.out / "made", leave_out=NOT_COMPARED)


def prepared(kind: str, template: str) -> Callable[[Case], Records]:
    def run(case: Case) -> Records:
        case.mm(f"prepare {kind} {{releases}}/own/{template} --output {{out}}/made")
        return _folder_made(case)

    return run


def prepared_release(name: str, template: str) -> Callable[[Case], Records]:
    def run(case: Case) -> Records:
        case.mm(f"prepare {name} {template} --output {{out}}/made")
        return _folder_made(case)

    return run


def extracted(template: str) -> Callable[[Case], Records]:
    def run(case: Case) -> Records:
        case.mm(f"extract {template} --device cpu --output {{out}}/o.h5")
        return records.of_store(case.out / "o.h5", with_rows=False)

    return run


def converted_embedding(template: str) -> Callable[[Case], Records]:
    """What the converted model gives for sentences and images."""

    def run(case: Case) -> Records:
        import numpy as np

        from fairseq_mm.inference.embedder import load_embedder

        case.mm(f"convert {template}")
        embedder = load_embedder(case.out / "made", device=DEVICE)
        texts = ["a red dog", "the cat sits"]
        images = [np.linspace(-1, 1, 5, dtype=np.float32)[None] ** 3]
        rows = [*embedder.embed_texts(texts), *embedder.embed_features(images)]
        return {name: {"vector": row} for name, row in zip([*texts, "image"], rows)}

    return run


def converted_stories(case: Case) -> Records:
    """The stories of the converted model."""
    case.mm("convert {releases}/fconv/checkpoint.pt {out}/made.pt --data {prompts}")
    case.mm(
        f"tell --checkpoint {{out}}/made.pt {OUT} {PROMPTS} --preset beam --min-len 1 "
        "--max-len-b 12"
    )
    return records.of_jsonl(case.out / "o.jsonl", fields=STORY_FIELDS)


def retrieved(template: str) -> Callable[[Case], Records]:
    fields = {"text": "hypothesis", "prompt": "prompt", "score": "score"}
    fields.update(training_prompt="training_prompt", training_line="training_line", k="k")
    return command(
        f"retrieve prompts {{prompts}} --output {{out}}/o.jsonl {template}", jsonl(fields)
    )


def tagged(case: Case) -> Records:
    shutil.copytree(case.places["captions"], case.out / "made")
    case.mm("prepare upgrade {out}/made")
    words = case.words("{out}/made --tagger rules")
    printed = script(SCRIPTS / "tag_pos.py", *words)
    assert printed.status == 0, printed.err[-3:]
    left_out = ("*.h5", "*.bin", "*.idx", "*.lock", "prepare.json")
    return records.of_folder(case.out / "made", leave_out=left_out)


# The table -----------------------------------------------------------------------------------

NOT_VECTORS = ("mlbl_b_vectors",)
WITH_ATTENTION = ("transtory_full", "glac_decoder_attention")
OF_IMAGES = of_kind(CAPTIONER, but=("mlbl_b_vectors",))
INVOCATIONS = (
    # fairseq-generate and fairseq-validate
    Invocation(
        "fairseq-generate beam",
        GENERATORS,
        generated_with_length("--beam 3"),
        fast=("m_rnn", "glac", "conv_story_fusion", "vg_bart"),
    ),
    Invocation(
        "fairseq-generate sampling",
        GENERATORS,
        generated_with_length("--beam 1 --sampling --sampling-topk 8 --temperature 0.8"),
        exact=False,
    ),
    Invocation(
        "fairseq-generate defaults",
        named("mlbl_b", "transtory_decoder", "conv_story_wp", "vg_bart_plain"),
        generated(""),
    ),
    Invocation(
        "fairseq-generate nbest",
        named("mlbl_f", "transtory_xl", "conv_story_gated", "vg_t5"),
        generated_with_length("--beam 4 --lenpen 0.5 --unkpen 3 --min-len 2"),
    ),
    Invocation(
        "fairseq-generate reference",
        of_kind(CAPTIONER, VISUAL_STORY, STORY, SUMMARIZER),
        lambda case: generated(
            "--score-reference" + (" --all-lines" if case.system.kind in FEATURES else ""),
            with_positions=True,
        )(case),
        fast=("transtory_xl",),
    ),
    Invocation(
        "fairseq-generate rules",
        of_kind(VISUAL_STORY),
        generated(
            "--beam 2 --min-words-per-sentence 2 --max-words-per-sentence 5 --repetition-penalty 5"
        ),
    ),
    Invocation(
        "fairseq-generate prefix",
        named("m_rnn", "mlbl_f"),
        generated_with_length("--beam 2 --prefix-words 'a dog'"),
    ),
    Invocation("fairseq-validate", of_kind(EMBEDDING, STRUCTURED, STORY), validated("")),
    Invocation(
        "fairseq-validate generated text",
        of_kind(CAPTIONER, VISUAL_STORY, SUMMARIZER, but=NOT_VECTORS),
        lambda case: validated('--eval-gen --eval-gen-args \'{{"beam": 2, "max_len_b": 12}}\'')(
            case
        ),
        fast=("vg_t5",),
    ),
    # captions
    Invocation(
        "caption features", OF_IMAGES, captioned(f"{STORED} --max-len-b 12"), fast=("m_rnn",)
    ),
    Invocation(
        "caption sampling",
        OF_IMAGES,
        captioned(f"{STORED} --sampling --sampling-topk 8 --seed 3 --max-len-b 12"),
        exact=False,
    ),
    Invocation(
        "caption prefix and nearest",
        named("m_rnn"),
        captioned(
            f"{STORED} --prefix 'a dog' --nearest {{data}} --no-repeat-ngram-size 2 "
            "--temperature 1.5"
        ),
    ),
    Invocation(
        "caption images",
        named("m_rnn_images", "transformer_captioner_images"),
        captioned(IMAGES),
        fast=("m_rnn_images",),
        exact=False,
    ),
    Invocation(
        "caption images by vectors",
        named("mlbl_b_vectors"),
        captioned(f"{IMAGES} --embedding {{root}}/captions/vse_images"),
        exact=False,
    ),
    Invocation(
        "caption images by structure",
        of_kind(STRUCTURED),
        captioned(f"{{images}}/valid0.jpg {{images}}/valid1.jpg {STRUCTURED_OPTIONS}"),
        fast=("sc_nlm",),
    ),
    Invocation(
        "caption features by structure",
        of_kind(STRUCTURED),
        captioned(
            "--features {captions_images}/features.h5 valid0.jpg valid1.jpg valid2.jpg "
            + STRUCTURED_OPTIONS.replace("--weights {weights} ", "")
            + " --beam 2 --language-score sentence --conditions image sentences"
        ),
    ),
    Invocation("python caption features", OF_IMAGES, python_caption),
    Invocation(
        "python caption images",
        named("m_rnn_images", "transformer_captioner_images", "mlbl_b_vectors"),
        python_caption_images,
        exact=False,
    ),
    Invocation(
        "python caption by structure", of_kind(STRUCTURED), python_caption_by_structure, exact=False
    ),
    Invocation("python ensemble", named("m_rnn"), python_ensemble("mlbl_b")),
    # images and sentences
    Invocation(
        "rank", of_kind(CAPTIONER, EMBEDDING, but=NOT_VECTORS), ranked, fast=("m_rnn", "vse_lstm")
    ),
    Invocation("embed", of_kind(EMBEDDING), embedded, fast=("vse_gru",)),
    Invocation(
        "retrieve nearest", of_kind(EMBEDDING), nearest("'a red dog' --minus red --plus cat")
    ),
    Invocation(
        "retrieve nearest to an item", of_kind(EMBEDDING), nearest("--id valid1.jpg --resort 5")
    ),
    Invocation(
        "retrieve nearest to an image",
        named("vse_images"),
        nearest("--image {images}/valid2.jpg --weights {weights}"),
        exact=False,
    ),
    Invocation("retrieve plot", named("vse_bow", "vse_lstm"), plotted),
    Invocation("python embed", of_kind(EMBEDDING), python_embed),
    # stories of images
    Invocation(
        "tell split", of_kind(VISUAL_STORY), told_of_images(SPLIT), fast=("transtory_full",)
    ),
    Invocation(
        "tell split sampling",
        of_kind(VISUAL_STORY),
        told_of_images(f"{SPLIT} --sampling-topk 8 --temperature 0.8 --seed 5"),
        exact=False,
    ),
    Invocation(
        "tell split paper",
        of_kind(VISUAL_STORY),
        told_of_images(f"{SPLIT} --preset paper --line 2 --line 4"),
    ),
    Invocation(
        "tell ids",
        of_kind(VISUAL_STORY),
        told_of_images(
            "--features {features} --max-words-per-sentence 8 "
            + " ".join(f"valid2_{i}" for i in range(5))
        ),
    ),
    Invocation(
        "tell images",
        named("glac_images"),
        told_of_images(f"{ALBUM} --weights {{weights}} --max-words-per-sentence 8"),
        fast=("glac_images",),
        exact=False,
    ),
    Invocation(
        "tell systems",
        named("glac"),
        command(
            f"tell {SPLIT} --compare G={{model}} XL={{root}}/stories/transtory_xl --limit 2 {OUT}",
            jsonl(VISUAL_STORY_FIELDS),
        ),
    ),
    Invocation("python stories of images", of_kind(VISUAL_STORY), python_visual_stories),
    Invocation(
        "python story of image files", named("glac_images"), python_tell_images, exact=False
    ),
    Invocation(
        "rank of visual stories",
        of_kind(VISUAL_STORY),
        ranked_stories("--candidates 3"),
    ),
    Invocation(
        "perplexity of visual stories",
        of_kind(VISUAL_STORY),
        perplexity("--counting transtory --shuffled-images --seed 1"),
        fast=("glac_non_local",),
    ),
    Invocation(
        "inspect stories",
        named(*WITH_ATTENTION, "glac_non_local"),
        inspected("{data} --split valid --lines 1,4"),
    ),
    # stories of prompts
    Invocation(
        "tell prompts",
        of_kind(STORY),
        hypotheses(f"{PROMPTS} --min-len 20 --max-len-b 20 --seed 3"),
        exact=False,
    ),
    Invocation(
        "tell prompts beam",
        of_kind(STORY),
        hypotheses(f"{PROMPTS} --preset beam --min-len 1 --max-len-b 20"),
        fast=("conv_story_gated", "conv_story_wp"),
    ),
    Invocation(
        "tell prompts nucleus",
        named("conv_story_gated", "conv_story_fusion"),
        hypotheses(
            f"{PROMPTS} --n 2 --preset paper --sampling-topp 0.9 --temperature 1.2 --min-len 12 "
            "--max-len-b 12 --seed 4"
        ),
        exact=False,
    ),
    Invocation(
        "tell prompts default",
        named("conv_story_fusion"),
        hypotheses("--prompt '[WP] You find a door .'"),
        exact=False,
    ),
    Invocation(
        "tell made-up prompts",
        named("conv_story_fusion"),
        hypotheses(
            "--prompt-model {root}/prompts/gcnn_lm_self_att --n 3 --min-len 12 --max-len-b 12 "
            "--seed 3"
        ),
        exact=False,
    ),
    Invocation(
        "make up prompts",
        named("gcnn_lm", "gcnn_lm_self_att"),
        command(
            f"tell --prompt-model {{model}} --prompts-only --n 4 --seed 3 {OUT}",
            jsonl(PROMPT_FIELDS),
        ),
        exact=False,
    ),
    Invocation(
        "tell without prompts",
        named("gcnn_lm_stories"),
        hypotheses("--min-len 20 --max-len-b 20 --preset greedy"),
        fast=("gcnn_lm_stories",),
    ),
    Invocation(
        "tell without prompts sampling",
        named("gcnn_lm_stories"),
        hypotheses("--n 3 --min-len 20 --max-len-b 20 --seed 3"),
        exact=False,
    ),
    Invocation("python stories", of_kind(STORY, but=WITHOUT_DICTIONARY), python_stories),
    Invocation(
        "python ensemble of stories", named("conv_story_multihead"), python_ensemble("conv_story")
    ),
    Invocation(
        "python language model", named("gcnn_lm_stories"), python_language_model, exact=False
    ),
    Invocation(
        "rank of stories",
        of_kind(STORY, but=WITHOUT_DICTIONARY),
        ranked_stories("--candidates 3"),
    ),
    Invocation(
        "perplexity of stories",
        of_kind(STORY, but=WITHOUT_DICTIONARY),
        perplexity("--tune-temperature --top-k 5"),
    ),
    Invocation(
        "perplexity of a language model",
        of_kind(LANGUAGE_MODEL),
        lambda case: perplexity("")(_whole_folder(case)),
    ),
    Invocation(
        "inspect story",
        of_kind(STORY, but=WITHOUT_DICTIONARY),
        inspected("{data} --split valid --line 1 --words 6"),
        fast=("conv_story_fusion",),
    ),
    # summaries
    Invocation(
        "summarize split",
        of_kind(SUMMARIZER),
        summarized_split(""),
        fast=("vg_bart", "pointer_generator"),
    ),
    Invocation(
        "summarize split sampling",
        of_kind(SUMMARIZER),
        summarized_split("--sampling --sampling-topk 8 --seed 2"),
        exact=False,
    ),
    Invocation(
        "summarize split options",
        named("vg_t5", "mffg_transformer", "bart"),
        summarized_split(
            "--beam 2 --lenpen 0.5 --min-len 4 --no-repeat-ngram-size 2 --max-len-b 8"
        ),
    ),
    Invocation(
        "summarize videos",
        named("vg_bart_clips"),
        summarized(
            "{clips}/video0.mp4 {clips}/video1.mp4 {clips}/video2.mp4 "
            "--transcript {clips}/a.txt --transcript {clips}/b.srt --transcript {clips}/c.txt"
        ),
        exact=False,
    ),
    Invocation("python summaries", of_kind(SUMMARIZER), python_summaries),
    Invocation(
        "python summaries of videos",
        named("vg_bart_clips"),
        python_summaries_of_videos,
        exact=False,
    ),
    Invocation(
        "inspect gates",
        named("vg_bart", "vg_bart_decoder", "vg_bart_released", "vg_t5"),
        inspected("{data} --split valid --gates"),
        fast=("vg_bart",),
    ),
    Invocation(
        "inspect summaries",
        lambda system: (
            system.kind == SUMMARIZER and system.name not in (*READS_NO_VIDEO, "vg_bart_clips")
        ),
        inspected("{data} --split valid --lines 0,3 --layers"),
    ),
    # all
    Invocation(
        "doctor",
        lambda system: True,
        doctored,
        fast=("m_rnn", "transtory_xl", "conv_story_wp", "pointer_generator"),
    ),
)


def _whole_folder(case: Case) -> Case:
    """A language model is measured on the folder of prompts and stories."""
    case.places["data"] = case.places["prompts"]
    return case


WITHOUT_METEOR = "bleu,rouge_l,cider,diversity"
COMMANDS: dict[str, dict[str, Callable[[Case], Records]]] = {
    "score": {
        "coco": scored("captions", f"--metrics {WITHOUT_METEOR},novelty"),
        "m_rnn": scored("captions", "--preset m_rnn --metrics bleu"),
        "compare": scored(
            "captions", "--metrics bleu,cider --compare {out}/other.jsonl --bootstrap 40"
        ),
        "vist": scored("stories", "--preset vist --metrics bleu,rouge_l,cider,sentences,diversity"),
        "vist meteor": scored("stories", "--preset vist --metrics meteor_vist"),
        "vist albums": scored(
            "stories", "--preset vist --metrics bleu,cider --references-of album"
        ),
        "how2": scored("videos", "--preset how2 --metrics rouge,bleu,cider,novel_ngrams"),
        "how2 content f1": scored("videos", "--preset how2 --metrics content_f1,meteor"),
    },
    # `score --system`; the outputs have the name of the former subcommand
    "gain": {"items": gained, "figures": gained_by_figures},
    "retrieve prompts": {
        "valid": retrieved("--split valid --words 10"),
        "kth": retrieved("--prompt 'You find the old house' --k 2"),
    },
    "store": {
        "info": store("info {captions}/features.h5"),
        "info of images": store("info {captions_images}/features.h5"),
        "verify": store("verify {videos}/features.h5"),
        "import": store(
            "import {releases}/own/array.npy --output {out}/o.h5 --ids {releases}/own/array_ids.txt"
        ),
        "merge": store(
            "merge {captions}/features.h5 {releases}/own/features.h5 --output {out}/o.h5"
        ),
        "convert": store("convert {videos}/features.h5 --output {out}/o.h5 --dtype float16"),
    },
    "prepare": {
        "captions": prepared("captions", "captions.jsonl --threshold 1 --valid-size 2"),
        "prompts": prepared(
            "prompts",
            "prompts.jsonl --valid-size 2 --source-threshold 1 --target-threshold 1 --workers 1",
        ),
        "stories": prepared("stories", "stories.jsonl --valid-size 1 --threshold 1"),
        "videos": prepared("videos", "videos.jsonl --valid-size 2 --workers 1"),
        "videos with indexed OOV tokens": prepared(
            "videos",
            "videos.jsonl --valid-size 2 --workers 1 --threshold 3 --indexed-oov 4 "
            "--tokenizer words",
        ),
        "flickr8k": prepared_release("flickr8k", "{releases}/flickr8k --threshold 1"),
        "flickr30k": prepared_release(
            "flickr30k", "{releases}/flickr30k/dataset_flickr30k.json --threshold 1"
        ),
        "coco": prepared_release(
            "coco",
            "{releases}/coco/captions_train2014.json {releases}/coco/captions_val2014.json "
            "--split m_rnn --split-ids valid={releases}/coco/valid.txt "
            "test={releases}/coco/test.txt --threshold 1",
        ),
        "iapr_tc12": prepared_release(
            "iapr_tc12",
            "{releases}/iapr_tc12/annotations --split-ids train={releases}/iapr_tc12/train.txt "
            "test={releases}/iapr_tc12/test.txt --threshold 1",
        ),
        "vist": prepared_release("vist", "{releases}/vist --threshold 1"),
        "vist descriptions": prepared_release(
            "vist", "{releases}/vist --tier description-in-isolation --threshold 1"
        ),
        "writingprompts": prepared_release(
            "writingprompts",
            "{releases}/writingprompts --source-threshold 1 --target-threshold 1 --workers 1",
        ),
        "how2": prepared_release(
            "how2", "{releases}/how2/text --features {releases}/how2/actions --workers 1"
        ),
        "tags": tagged,
    },
    "convert": {
        "kiros": converted_embedding("{releases}/kiros/f8k.npz {out}/made"),
        "vse++": converted_embedding(
            "{releases}/vsepp/model_best.pth.tar {out}/made "
            "--vocabulary {releases}/vsepp/vocabulary.pkl"
        ),
        "stories": converted_stories,
    },
    "extract": {
        "images": extracted(
            "{images} --model squeezenet1_1 --weights {weights} --resize squash --size 33"
        ),
        "grid": extracted(
            "{images} --model squeezenet1_1 --weights {weights} --size 33 --grid --ids stem"
        ),
    },
}
FAST_COMMANDS = (
    "score coco",
    "score how2",
    "gain figures",
    "store info",
    "prepare captions",
    "prepare prompts",
    "prepare vist",
)


class Entry(NamedTuple):
    """
    Attributes:
        system: or the subcommand, for those that load no checkpoint.
        name: of the invocation.
        action: what runs it.
        is_fast: whether it belongs to the fast suite.
        exact: see :class:`Invocation`.
        needs: a program or a package that not every machine has, or nothing.
    """

    system: str
    name: str
    action: Callable[[Case], Records]
    is_fast: bool = False
    exact: bool = True
    needs: str = ""


NEEDS = {
    "score vist meteor": "pycocoevalcap",
    "score how2 content f1": "pycocoevalcap",
    "summarize videos": "av",
    "python summaries of videos": "av",
}
OUTPUT_FILES = (*FAMILIES, "commands")


def matrix(family: str) -> list[Entry]:
    """All that is run of a family of systems, or of ``commands``."""
    if family == "commands":
        return [
            Entry(
                subcommand,
                name,
                action,
                is_fast=f"{subcommand} {name}" in FAST_COMMANDS,
                exact=subcommand != "extract",
                needs=NEEDS.get(f"{subcommand} {name}", ""),
            )
            for subcommand, actions in COMMANDS.items()
            for name, action in actions.items()
        ]
    return [
        Entry(
            system.name,
            each.name,
            each.run,
            system.name in each.fast,
            each.exact,
            NEEDS.get(each.name, ""),
        )
        for system in SYSTEMS.values()
        if system.family == family
        for each in INVOCATIONS
        if each.applies(system)
    ]


def run(root: Path, entry: Entry) -> Records:
    """Its records, made in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder).resolve()
        found = entry.action(Case(root, SYSTEMS.get(entry.system), out))
        return records.normalised(records.normalised(found, out), root)
