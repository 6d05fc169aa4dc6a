"""Sentences, counts and the challenge's results file for ``fairseq-mm score --preset vist``."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable, Optional

from fairseq_mm.cli.records import list_first
from fairseq_mm.cli.score_inputs import References, read_split_ids
from fairseq_mm.data.split_files import read_missing_images
from fairseq_mm.data.split_text import read_albums
from fairseq_mm.data.story_text import SEPARATOR, split_sentences
from fairseq_mm.errors import UserError

# number of sequences -> name of the official test part; figures over one part say nothing about
# figures over the other
OFFICIAL_TEST_PARTS = {
    1938: "the official evaluation's template",
    2019: "the whole official test part",
}
NAMED = 3  # images in a message

Tokenizer = Callable[[str], list[str]]


def without_separators(text: str) -> str:
    """Remove the sentence separators (``<sent>``) of a story; other texts are unchanged."""
    if SEPARATOR not in text:
        return text  # with its spaces, which split and join would normalize
    return " ".join(word for word in text.split() if word != SEPARATOR)


def split_stories(texts: Sequence[str], tokenize: Tokenizer) -> Optional[list[list[list[str]]]]:
    """Split stories into sentences at ``<sent>``, and tokenize the sentences.

    Returns:
        List of stories, each a list of sentences, each a list of tokens; None if no text contains
        ``<sent>``.
    """
    if not any(SEPARATOR in text.split() for text in texts):
        return None
    return [[tokenize(sentence) for sentence in split_sentences(text)] for text in texts]


def describe_split(
    references: References, ids: Sequence[str], data: Optional[str], generated: Optional[str]
) -> dict[str, object]:
    """Count the image sequences of a split that were scored, and the images with features.

    Args:
        references: References of the split.
        ids: Ids of the scored sequences.
        data: Path of the data folder; None without a data folder.
        generated: Path of the generated stories; its first lines may name the feature stores.

    Returns:
        JSON object with the counts, and with ``summary``, a line of text with the counts.
    """
    expected = len(references.texts)
    part = OFFICIAL_TEST_PARTS.get(expected)
    counts: dict[str, object] = {"sequences": len(ids), "sequences_expected": expected}
    summary = f"sequences: {len(ids):,} of {expected:,}"
    if part is not None:
        counts["part"] = part
        summary += f" ({part})"
    # an id is a line of visual_ids: the ids of five images, separated by tabs
    images = {image for key in references.texts for image in key.split("\t")}
    counts["images"] = len(images)
    summary += f"; images: {len(images):,}"
    stores = _stores(data, generated)
    if data is not None and stores:
        from fairseq_mm.data.feature_store import open_features

        features = open_features(stores)
        missing = images & read_missing_images(data)
        # neither in a store nor listed as missing: the stores are not the folder's
        unknown = sorted(p for p in images - missing if p not in features)
        with_features = len(images) - len(missing) - len(unknown)
        without_features = missing.union(unknown)
        counts["images_with_features"] = with_features
        counts["images_missing"] = len(missing)
        counts["images_unknown"] = len(unknown)
        counts["sequences_with_missing_images"] = sum(
            not without_features.isdisjoint(key.split("\t")) for key in references.texts
        )
        summary += f", {with_features:,} with features, {len(missing):,} in missing_images.txt"
        if unknown:
            summary += f", {len(unknown):,} in neither ({list_first(unknown, NAMED)})"
    else:
        summary += ", no feature store to look for them in"
    counts["summary"] = summary
    return counts


def _stores(data: Optional[str], generated: str) -> list[str]:
    """Return the paths of the feature stores with which stories were generated.

    They are named in the file ``generated``; else the data folder's store is returned. If a store
    does not exist, the list is empty.
    """
    from fairseq_mm.metrics.result_card import decoding_settings

    try:
        named = decoding_settings(generated or "").get("features")
    except OSError:
        named = None
    if isinstance(named, str) and named:
        paths = named.split(os.pathsep)
    else:
        paths = [] if data is None else [str(Path(data) / "features.h5")]
    return paths if all(map(os.path.isfile, paths)) else []


def make_submission(data: str, split: str, texts: Mapping[str, str]) -> str:
    """Return stories in the format that the challenge's program EvalVIST reads as ``-testFile``.

    Args:
        data: Path of the data folder.
        split: Name of the split.
        texts: Dict from an image sequence (ids of five images, separated by tabs) to its story.
    """
    visual_ids = read_split_ids(data, split)
    albums = read_albums(data, split)
    if len(albums) != len(visual_ids):
        raise UserError(
            f"{Path(data) / f'{split}.stories.jsonl'} has {len(albums)} lines, but "
            f"{Path(data) / f'{split}.visual_ids'} has {len(visual_ids)}: they must agree line by "
            "line."
        )
    albums_by_id: dict[str, str] = {}
    for key, album in zip(visual_ids, albums):
        albums_by_id.setdefault(key, album)
    stories = [
        {
            "album_id": album,
            "photo_sequence": key.split("\t"),
            "story_text_normalized": without_separators(texts[key]),
        }
        for key, album in albums_by_id.items()
        if key in texts
    ]
    content = {
        "team_name": "fairseq_mm",
        "evaluation_info": {"additional_description": f"{split}, {len(stories)} sequences"},
        "output_stories": stories,
    }
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"
