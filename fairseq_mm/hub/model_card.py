"""Writes the model card, the ``README.md`` of a model folder."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from fairseq.models import ARCH_MODEL_REGISTRY

from fairseq_mm.data.input_files import read_json
from fairseq_mm.data.model_folder import CARD_FILE, PLACEHOLDER
from fairseq_mm.errors import UserError
from fairseq_mm.extract.weights import VECTORS_EXTRACTOR
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.metrics.score_rows import format_figure
from fairseq_mm.models._provenance import fingerprint

HOMEPAGE = "https://github.com/fairseq-mm/fairseq_mm"

# kind of model -> the hub's name of the task, and a description
_KINDS = {
    "captions": ("image-to-text", "It generates captions of images."),
    "vectors": ("feature-extraction", "It embeds images and sentences in one space."),
    "albums": ("image-to-text", "It generates a story of five images."),
    "prompts": ("text-generation", "It generates stories."),
    "summaries": ("summarization", "It generates summaries of videos with transcripts."),
}


def read_scores(path: str) -> list[dict[str, Any]]:
    """Read the scores in a result of ``fairseq-mm score --json``."""
    result = read_json(path)
    scores = result.get("scores") if isinstance(result, dict) else None
    # type() and not isinstance(), because True is an int; a score may be missing: null
    if not scores or not all(
        isinstance(entry, dict)
        and isinstance(entry.get("metric"), str)
        and type(entry.get("value", "")) in (int, float, type(None))
        for entry in scores
    ):
        raise UserError(f"{path}: must be a result of fairseq-mm score --json, but has no scores.")
    return scores


def write_card(
    config: Mapping[str, Any],
    checkpoint: Checkpoint,
    folder: str,
    *,
    scores: Optional[Sequence[Mapping[str, Any]]] = None,
) -> None:
    """Write the model card to the folder whose ``config.json`` has the content ``config``."""
    pipeline, _ = _KINDS.get(checkpoint.kind, ("", ""))
    front = ["---", "library_name: fairseq_mm"]
    front += [f"pipeline_tag: {pipeline}"] if pipeline else []
    front += ["tags: [fairseq, fairseq_mm]", "# license: fill in, such as mit", "---", ""]
    updates, epoch = (config["training"][name] for name in ("num_updates", "epoch"))
    model_rows = [
        ("architecture", config["architecture"]),
        ("task", config["task"]),
        ("package that defines it", config["plugin"] or ""),
        ("number of weights", f"{config['weights']['parameters']:,}"),
        ("updates", "" if updates is None else f"{updates:,}"),
        # fairseq records the epoch that comes next
        ("epochs", "" if epoch is None else f"{epoch - 1:,}"),
        ("exported by", f"fairseq_mm {config['fairseq_mm_version']}"),
        ("SHA-256 of the checkpoint", config["checkpoint_sha256"]),
    ]
    sections = [
        "\n".join(front),
        _introduction(config, checkpoint),
        _usage(config, checkpoint),
        _table("Model", model_rows),
        _table("Training data", _data_rows(config, checkpoint)),
    ]
    if scores is not None:
        sections.append(_scores(scores))
    sections.append("## Licence\n\nTo be filled in by whoever publishes the model.\n")
    with open(os.path.join(folder, CARD_FILE), "w", encoding="utf-8", newline="\n") as file:
        file.write("\n".join(sections))


def _introduction(config: Mapping[str, Any], checkpoint: Checkpoint) -> str:
    model = ARCH_MODEL_REGISTRY.get(checkpoint.arch)
    is_ours = model is not None and model.__module__.startswith("fairseq_mm.")
    # the first paragraph of the class's docstring says what the model is
    summary = (model.__doc__ or "").strip().split("\n\n")[0] if is_ours else ""
    _, purpose = _KINDS.get(checkpoint.kind, ("", ""))
    text = " ".join((summary.replace("`", "") or purpose).split())
    return (
        f"# {_plain(config['architecture'])}\n\n{text}\n\n"
        f"Architecture {_code(config['architecture'])}, trained with "
        f"[fairseq_mm]({HOMEPAGE}) (task {_code(config['task'])}).\n"
    )


def _usage(config: Mapping[str, Any], checkpoint: Checkpoint) -> str:
    library = str(checkpoint.extractor.get("library", "")).partition(" ")[0]
    extras = ["fairseq", "hub", *(["timm"] if library == "timm" else [])]
    weights = str(checkpoint.extractor.get("weights", ""))
    has_file = len(weights) == 64  # recorded by its SHA-256
    option, argument = (" --weights FILE", ', weights="FILE"') if has_file else ("", "")
    lines = [
        "## Use",
        "",
        "```bash",
        f"pip install 'fairseq-mm[{','.join(extras)}]'",
        f"{_command(checkpoint)}{option}",
        "```",
        "",
        "```python",
        "import fairseq_mm",
        "",
        f'model = fairseq_mm.from_pretrained("{PLACEHOLDER}"{argument})',
        "```",
        "",
    ]
    notes = []
    if checkpoint.extractor.get("extractor") == VECTORS_EXTRACTOR:
        notes.append(
            "It reads vectors of an embedding model: give that model (`--embedding`; in Python "
            "`embedding=`)."
        )
    elif has_file:
        notes.append(
            "Images and videos are read with the extractor below. FILE is its weights file, whose "
            f"SHA-256 is {_code(weights)}."
        )
    elif checkpoint.feature_dim and not checkpoint.extractor.get("extractor"):
        notes.append("The extractor is not recorded: give features (`--features STORE`).")
    if config["plugin"] is not None:
        notes.append("Load the package that defines the model first (`--user-dir DIR`).")
    return "\n".join([*lines, *(f"{note}\n" for note in notes)])


def _command(checkpoint: Checkpoint) -> str:
    name = f"--checkpoint {PLACEHOLDER}"
    if checkpoint.reads_structure:
        return f"fairseq-mm caption photo.jpg {name} --embedding PATH --data DATA"
    if checkpoint.kind == "prompts" and checkpoint.provenance.get("source_words") is None:
        return f"fairseq-mm tell {name} --n 3"
    commands = {
        "captions": f"fairseq-mm caption photo.jpg {name}",
        "vectors": f"fairseq-mm index FOLDER {name}",
        "albums": f"fairseq-mm tell 1.jpg 2.jpg 3.jpg 4.jpg 5.jpg {name}",
        "prompts": f'fairseq-mm tell --prompt "A dragon opens a bakery ." {name}',
        "summaries": f"fairseq-mm summarize --transcript lesson.srt {name}",
    }
    if checkpoint.kind == "summaries" and checkpoint.feature_dim:
        return f"fairseq-mm summarize lesson.mp4 --transcript lesson.srt {name}"
    return commands.get(checkpoint.kind, f"fairseq-mm generate inputs.jsonl {name}")


def _data_rows(config: Mapping[str, Any], checkpoint: Checkpoint) -> list[tuple[str, Any]]:
    provenance = checkpoint.provenance
    rows: list[tuple[str, Any]] = [("data folder", config["task_options"].get("data") or "")]
    for title, name in (("dictionary", "words"), ("source dictionary", "source_words")):
        words = provenance.get(name)
        if words is not None:
            rows.append((title, f"{len(words):,} words, fingerprint {fingerprint(words)}"))
    if provenance.get("subwords"):
        rows.append(("subwords", provenance["subwords"].get("kind", "")))
    if checkpoint.feature_dim:
        rows.append(("features", f"dimension {checkpoint.feature_dim}"))
    # the config of a network is long, and config.json has it
    rows += [
        ("weights of the extractor" if name == "weights" else name, value)
        for name, value in sorted(checkpoint.extractor.items())
        if name != "network_config"
    ]
    return rows


def _scores(scores: Sequence[Mapping[str, Any]]) -> str:
    lines = ["## Scores", "", "| metric | value | 95 % interval | items | signature |"]
    lines.append("|---|---|---|---|---|")
    for entry in scores:
        name, interval = entry["metric"], entry.get("interval") or []
        cells = [
            _plain(name),
            format_figure(name, entry["value"]),
            " to ".join(format_figure(name, x) for x in interval),
            _plain(str(entry.get("scored", ""))),
            _code(str(entry.get("signature", ""))),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _table(title: str, rows: Sequence[tuple[str, Any]]) -> str:
    lines = [f"## {title}", "", "| | |", "|---|---|"]
    for name, value in rows:
        text = value if isinstance(value, str) else repr(value)
        if text:
            lines.append(f"| {_plain(name)} | {_code(text)} |")
    return "\n".join([*lines, ""])


def _plain(text: str) -> str:
    """Return text without line breaks and without characters that Markdown would interpret."""
    return "".join(x for x in " ".join(text.split()) if x not in "<>[]`*|#!\\")


def _code(text: str) -> str:
    """Return text as code in a table cell."""
    return f"`{' '.join(text.split()).replace('`', '').replace('|', chr(92) + '|')}`"
