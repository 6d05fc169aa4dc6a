"""What becomes of visual stories with missing images: left out, kept without them, or refused."""

from collections.abc import Mapping

from fairseq_mm.errors import UserError
from fairseq_mm.prepare.visual_stories import VisualStory, VisualStoryCorpus

POLICIES = ("drop", "keep", "refuse")


def leave_out_missing(
    corpus: VisualStoryCorpus, missing: Mapping[str, str], *, policy: str
) -> None:
    """Applies a policy to the visual stories whose images are missing.

    Args:
        corpus: changed in place. Stories that are left out stay references of their album.
        missing: image -> why it cannot be used.
        policy: ``drop`` leaves those stories out; ``keep`` keeps them, without those images, if
            any image is left; ``refuse`` refuses them.

    Raises:
        UserError: if an image is missing and the policy is to refuse.
    """
    for split, stories in corpus.stories.items():
        kept: list[VisualStory] = []
        masked: list[str] = []
        left_out: list[VisualStory] = []
        absent: dict[str, None] = {}
        for story in stories:
            gaps = [image for image in story.images if image in missing]
            if gaps and policy == "refuse":
                raise UserError(
                    f"{story.where}: image {gaps[0]} of story {story.id} is missing "
                    f"({missing[gaps[0]]}); --missing drop leaves such stories out, --missing keep "
                    "keeps them without the image."
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
            ("images missing", list(absent)),
            ("stories left out, images missing", [story.id for story in left_out]),
            ("stories kept with images masked", masked),
        ):
            if ids:
                corpus.exceptions[f"{split} {what}"] = ids
