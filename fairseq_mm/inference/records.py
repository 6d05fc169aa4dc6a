"""Builds JSON records of generated texts, which the commands write and the server sends.

A record is one JSON object per input. It has ``id``, ``hypothesis`` and ``score``, then fields that
depend on the task, then the fields ``options``, ``checkpoint`` (SHA-256) and ``extractor``. This
module does not import torch.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairseq_mm.data.story_text import SEPARATOR
from fairseq_mm.inference.checkpoint_files import compute_checkpoint_digest

# for annotations alone: these modules import torch, which takes seconds
if TYPE_CHECKING:
    from fairseq_mm.generation.config import GenerationConfig
    from fairseq_mm.inference.generator import Generator
    from fairseq_mm.inference.hypothesis import Hypothesis


def build_record(
    name: Any,
    hypotheses: "Sequence[Hypothesis]",
    others: Mapping[str, Any],
    *,
    as_line: bool = False,
    each: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the JSON record of an input, with its generated texts, as a dictionary.

    Args:
        name: Id of the input.
        hypotheses: Hypotheses, best first. The record has the fields of the best hypothesis; if
            there are several hypotheses, it also has a list of all.
        others: Further fields of the record.
        as_line: True to write the tokens of a hypothesis instead of its detokenized text.
        each: Further fields of each hypothesis, in order; empty for no further fields.
    """
    # the best hypothesis is always a field of its own, where `score` looks for it
    entries = [
        {
            "hypothesis": best.line if as_line else best.text,
            "score": round(best.score, 4),
            **({} if best.utility is None else {"utility": round(best.utility, 4)}),
        }
        for best in hypotheses
    ]
    entries = [{**entry, **fields} for entry, fields in zip(entries, each)] if each else entries
    several = {"hypotheses": entries} if len(entries) > 1 else {}
    return {"id": name, **entries[0], **several, **others}


def provenance_fields(
    model: "Generator", config: "GenerationConfig", *, checkpoint: Any = None
) -> dict[str, Any]:
    """Return the fields of a JSON record that say how its text was generated.

    The fields are the digest of the checkpoint, the options of generation and, for models of images
    or videos, the extractor.

    Args:
        model: Generator of the text.
        config: Generation config.
        checkpoint: Result of :func:`compute_digests` for the model's files; None to compute it.
    """
    options = {name: value for name, value in config.to_dict().items() if value is not None}
    checkpoint = compute_digests(model.files) if checkpoint is None else checkpoint
    facts = {"checkpoint": checkpoint, "options": options}
    identity = model.processor.extractor_identity
    return facts if identity is None else {**facts, "extractor": identity}


def compute_digests(files: Sequence[str]) -> Any:
    """Return the SHA-256 digest of a checkpoint or, for several, the list of their digests."""
    digests = [compute_checkpoint_digest(file) for file in files]
    return digests[0] if len(digests) == 1 else digests


def visual_story_fields(story: "Hypothesis") -> dict[str, Any]:
    """Return the fields of a JSON record for ``story``, generated from an image sequence."""
    words = story.line.split()
    return {"sentences": story.sentences, "words": len(words) - words.count(SEPARATOR)}


def prompt_story_fields(story: "Hypothesis") -> dict[str, Any]:
    """Return the fields of a JSON record for ``story``, generated from a prompt or no input."""
    return {"tokens": story.line, "words": len(story.line.split())}


def prompt_fields(prompt: Any) -> dict[str, Any]:
    """Return the fields of a JSON record that describe a :class:`.prompt_processor.Prompt`."""
    fields = {"prompt": prompt.text, "prompt_tokens": " ".join(prompt.words)}
    if prompt.score is None:
        return {**fields, "unknown_words": prompt.unknown, "prompt_words_cut": prompt.num_truncated}
    return {**fields, "prompt_score": round(prompt.score, 4)}


def summary_fields(example: Any, *, is_cut: bool) -> dict[str, Any]:
    """Return the fields of a JSON record that describe the input of a summary.

    Args:
        example: :class:`.Example` of a video with transcript.
        is_cut: True if the video was truncated.
    """
    transcript = example.origin
    fields = {
        "transcript_tokens": transcript.num_tokens,
        "transcript_tokens_cut": transcript.num_cut,
    }
    if example.features is not None:
        fields.update(frames=len(example.features), frames_cut=is_cut)
    return fields
