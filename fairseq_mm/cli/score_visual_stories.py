"""``fairseq-mm score --preset vist``: sentences of visual stories, what of a split was scored, and
the layout that the Visual Storytelling Challenge takes stories in."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable, Optional

from fairseq_mm.cli.score_inputs import References
from fairseq_mm.data.split_files import read_missing_images, read_visual_ids
from fairseq_mm.data.split_text import read_albums, read_story_words, story_text_path
from fairseq_mm.data.story_text import SEPARATOR, split_sentences
from fairseq_mm.errors import UserError

# sequences -> what the official test part is then
OFFICIAL_TEST_PARTS = {
    1938: "the official evaluation's template",
    2019: "the whole official test part",
}
NAMED = 3  # images in a message

Tokenizer = Callable[[str], list[str]]


def without_separators(text: str) -> str:
    """The story's words alone; other texts stay as they are."""
    if SEPARATOR not in text:
        return text
    return " ".join(word for word in text.split() if word != SEPARATOR)


def sentences_of(texts: Sequence[str], tokenize: Tokenizer) -> Optional[list[list[list[str]]]]:
    """Tokens of each story's sentences; None where no story says where a sentence ends."""
    if not any(SEPARATOR in text.split() for text in texts):
        return None
    return [[tokenize(sentence) for sentence in split_sentences(text)] for text in texts]


def written_sentences(
    data: Optional[str], split: str, tokenize: Tokenizer
) -> Optional[list[list[list[str]]]]:
    """The same of the split's own stories, to compare with; None where there are none."""
    if data is None or not story_text_path(data, split).is_file():
        return None
    return sentences_of([" ".join(words) for words in read_story_words(data, split)], tokenize)


def about_split(
    references: References, ids: Sequence[str], data: Optional[str], generated: Optional[str]
) -> dict[str, object]:
    """What of a split was scored: its image sequences, and its images with features.

    Args:
        references: of all sequences.
        ids: the sequences scored.
        data: the data folder, or None.
        generated: output of fairseq-generate, whose log names the feature stores; or another file,
            or None.

    Raises:
        UserError: if a feature store cannot be read.
    """
    expected = len(references.texts)
    part = OFFICIAL_TEST_PARTS.get(expected)
    found: dict[str, object] = {"sequences": len(ids), "sequences_expected": expected}
    summary = f"sequences: {len(ids):,} of {expected:,}"
    if part is not None:
        found["part"] = part
        summary += f" ({part})"
    images = {image for key in references.texts for image in key.split("\t")}
    found["images"] = len(images)
    summary += f"; images: {len(images):,}"
    stores = _stores(data, generated)
    if data is not None and stores:
        from fairseq_mm.data.feature_store import open_features

        features = open_features(stores)
        missing = images & read_missing_images(data)
        unknown = sorted(p for p in images - missing if p not in features)
        with_features = len(images) - len(missing) - len(unknown)
        lacking = missing.union(unknown)
        found["images_with_features"] = with_features
        found["images_missing"] = len(missing)
        found["images_unknown"] = len(unknown)
        found["sequences_with_missing_images"] = sum(
            not lacking.isdisjoint(key.split("\t")) for key in references.texts
        )
        summary += f", {with_features:,} with features, {len(missing):,} in missing_images.txt"
        if unknown:
            named = ", ".join(unknown[:NAMED]) + (", ..." if len(unknown) > NAMED else "")
            summary += f", {len(unknown):,} in neither ({named})"
    else:
        summary += ", no feature store to look for them in"
    found["summary"] = summary
    return found


def _stores(data: Optional[str], generated: str) -> list[str]:
    """Feature stores that are there: those that stories were generated from, or the folder's."""
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


def submission(data: str, split: str, texts: Mapping[str, str]) -> str:
    """Stories in the layout of the challenge (the file that EvalVIST takes as ``-testFile``).

    Args:
        data: the data folder, which knows the sequences' albums.
        split: its split.
        texts: line of visual_ids -> story.

    Raises:
        UserError: if the albums are not known.
    """
    visual_ids = read_visual_ids(str(Path(data) / f"{split}.visual_ids"))
    albums = read_albums(data, split)
    if len(albums) != len(visual_ids):
        raise UserError(
            f"{Path(data) / f'{split}.stories.jsonl'} has {len(albums)} lines, but "
            f"{Path(data) / f'{split}.visual_ids'} has {len(visual_ids)}: they must agree line by "
            "line."
        )
    album_of: dict[str, str] = {}
    for key, album in zip(visual_ids, albums):
        album_of.setdefault(key, album)
    stories = [
        {
            "album_id": album,
            "photo_sequence": key.split("\t"),
            "story_text_normalized": without_separators(texts[key]),
        }
        for key, album in album_of.items()
        if key in texts
    ]
    content = {
        "team_name": "fairseq_mm",
        "evaluation_info": {"additional_description": f"{split}, {len(stories)} sequences"},
        "output_stories": stories,
    }
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"
