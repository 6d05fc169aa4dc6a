"""Pictures that stories tell of and that cannot be had: gone, unreadable, or not in the store.

``missing_images.txt`` in a data folder lists those of stories that were kept, one id a line: they
have no features, and are padding in the batch. The file is only there when there are any.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Union

from fairseq_mm.data.captions import read_lines
from fairseq_mm.data.picture_stories import PictureStory, PictureStoryCorpus
from fairseq_mm.errors import UserError

MISSING_IMAGES = "missing_images.txt"
POLICIES = ("drop", "keep", "refuse")


def read_missing_images(folder: Union[str, os.PathLike]) -> frozenset[str]:
    """Ids of the pictures that have no features, none where the data folder has no such list.

    Raises:
        UserError: if the list cannot be read, or has an empty line.
    """
    path = Path(folder) / MISSING_IMAGES
    if not path.exists():
        return frozenset()
    ids = []
    for number, line in read_lines(path):
        if not line.strip():
            raise UserError(f"{path}:{number}: must have the id of a picture, but is empty.")
        ids.append(line)
    return frozenset(ids)


def leave_out_missing(
    corpus: PictureStoryCorpus, missing: Mapping[str, str], *, policy: str
) -> None:
    """Applies a policy to the stories of pictures that are missing.

    Args:
        corpus: changed in place. Stories that are left out stay references of their album.
        missing: picture -> why it cannot be used.
        policy: ``drop`` leaves those stories out; ``keep`` keeps them, without those pictures, if
            any picture is left; ``refuse`` refuses them.

    Raises:
        UserError: if a picture is missing and the policy is to refuse.
    """
    for split, stories in corpus.stories.items():
        kept: list[PictureStory] = []
        masked: list[str] = []
        left_out: list[PictureStory] = []
        absent: dict[str, None] = {}
        for story in stories:
            gaps = [image for image in story.images if image in missing]
            if gaps and policy == "refuse":
                raise UserError(
                    f"{story.where}: picture {gaps[0]} of story {story.id} is missing "
                    f"({missing[gaps[0]]}); --missing drop leaves such stories out, --missing keep "
                    "keeps them without the picture."
                )
            absent.update(dict.fromkeys(gaps))
            if not gaps or (policy == "keep" and len(gaps) < len(story.images)):
                kept.append(story)
                masked += [story.id] if gaps else []
            else:
                left_out.append(story)
        corpus.stories[split] = kept
        corpus.missing.update((image, missing[image]) for image in absent)
        if left_out:
            corpus.references_only.setdefault(split, []).extend(left_out)
        for what, ids in (
            ("photographs missing", list(absent)),
            ("stories left out, photographs missing", [story.id for story in left_out]),
            ("stories kept with photographs masked", masked),
        ):
            if ids:
                corpus.exceptions[f"{split} {what}"] = ids
