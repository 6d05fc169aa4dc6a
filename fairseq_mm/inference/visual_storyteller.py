"""Five images -> a story of five sentences in Python: what ``fairseq-mm tell`` does.

    import fairseq_mm

    teller = fairseq_mm.from_pretrained("checkpoints/glac", weights="resnet152.pt")
    story = teller.tell(["1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg"])
    story.sentences                          # ["we went to the lake today.", "the kids ...", ...]

A checkpoint carries its dictionary and the identity of the extractor that it was trained with, so
nothing but the extractor's weights is needed beside it. Li et al. 2020, Transtory-XL: Tell Stories
from Image Streams.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from PIL import Image

from fairseq_mm.data.story_text import detokenize_story
from fairseq_mm.data.visual_story_text import NUM_IMAGES, join_sentences, split_sentences
from fairseq_mm.errors import UserError
from fairseq_mm.generation.constraints import StoryRules
from fairseq_mm.generation.defaults import VISUAL_STORIES
from fairseq_mm.inference.image_models import AnyImage, ImageModels, load_image_models
from fairseq_mm.inference.text_models import Paths, load_states, tells_visual_stories
from fairseq_mm.inference.text_writer import Telling, preset_with

Features = Sequence[Optional[np.ndarray]]


@dataclass(frozen=True)
class ImageTelling(Telling):
    """How a story of images is generated.

    Args:
        beam: as of :class:`.Telling`, and so are ``topk``, ``topp``,
            ``temperature``, ``no_repeat_ngram``, ``seed`` and ``allow_unk``.
        min_words: shortest sentence.
        max_words: longest sentence; it is ended there.
        repetition_penalty: the probability of a word that the story has n times already is divided
            by 1 + n times this; punctuation and the commonest verbs and articles may repeat.
        end_after_punctuation: a sentence ends only after ``. ? !``.

    Raises:
        UserError: if a value is out of its range, or ``topk`` or ``topp`` is given with a beam.
    """

    min_words: int = 1
    max_words: int = 50
    repetition_penalty: float = 0.0
    end_after_punctuation: bool = False


PRESETS = {
    "beam": ImageTelling(beam=VISUAL_STORIES["beam"]),
    "greedy": ImageTelling(beam=1),
    # the released code takes the most frequent of 100 draws for each word
    "paper": ImageTelling(beam=1, repetition_penalty=5.0, end_after_punctuation=True),
    "sampling": ImageTelling(),
}


def image_telling(preset: Optional[str] = None, **changes: Any) -> ImageTelling:
    """
    Args:
        preset: ``beam`` of 5; ``greedy``; ``paper``: greedy with the two rules of the paper's
            released code; ``sampling`` from all words. By default ``sampling`` where ``topk`` or
            ``topp`` is given, else ``beam``.
        **changes: fields of :class:`ImageTelling` with other values than the preset's.

    Raises:
        UserError: if there is no such preset or field, or a value is out of its range.
    """
    draws = "topk" in changes or "topp" in changes
    return preset_with(preset or ("sampling" if draws else "beam"), PRESETS, **changes)


class Story(NamedTuple):
    """A story of five images.

    Attributes:
        sentences: five, as people read them.
        score: mean log-probability of its tokens, the ends of its sentences included.
        words: of each sentence, as the model wrote them.
    """

    sentences: list[str]
    score: float
    words: list[list[str]]

    @property
    def text(self) -> str:
        """A sentence a line."""
        return "\n".join(self.sentences)

    @property
    def line(self) -> str:
        """As it stands in a data folder's text and in fairseq-generate's output."""
        return join_sentences([" ".join(words) for words in self.words])


def from_pretrained(
    path: Paths,
    *,
    weights: Optional[str] = None,
    device: Optional[str] = None,
    states: Optional[dict[str, dict[str, Any]]] = None,
) -> "VisualStoryteller":
    """A teller of stories from one checkpoint, or an ensemble of several.

    Args:
        path: checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``;
            several as a list or joined by the system's path separator. Their probabilities are
            averaged.
        weights: the extractor's state dict file; found by its content if it lies in the folder of
            a checkpoint.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU where there is one.
        states: the checkpoints, if :func:`.load_states` has read them
            already.

    Raises:
        UserError: if a checkpoint cannot be loaded, tells no visual stories, or two do not
            fit together.
    """
    states = load_states(path) if states is None else states
    for file, state in states.items():
        if not tells_visual_stories(state):
            task = state["cfg"]["task"]["_name"]
            hint = ": fairseq-mm caption" if task == "multimodal_captioning" else ""
            raise UserError(
                f"{file}: was trained with --task {task}, and tells no visual stories{hint}."
            )
    loaded = load_image_models(path, device=device, states=states)
    return VisualStoryteller(*loaded[:3], files=loaded.files, weights=weights, device=loaded.device)


class VisualStoryteller(ImageModels):
    """Stories of five images by one model or several.

    Args:
        task: made by ``from_provenance``.
        models: loaded, in evaluation mode.
        provenance: what the models were trained on.
        files: their checkpoints.
        weights: the extractor's state dict file, or None.
        device: where extractor and models run.

    Attributes:
        rows_per_image: R, rows of features of each image.

    Raises:
        UserError: if the training of a model has diverged.
    """

    def __init__(self, task: Any, models: list[Any], provenance: Any, **options: Any) -> None:
        super().__init__(task, models, provenance, **options)
        self.rows_per_image: int = provenance["rows_per_image"]
        for file, model in zip(self.files, self.models):
            if not all(bool(weight.isfinite().all()) for weight in model.parameters()):
                raise UserError(
                    f"{file}: has weights that are no numbers: its training has diverged; take an "
                    "earlier checkpoint."
                )

    def tell(
        self,
        images: Sequence[Optional[AnyImage]],
        *,
        preset: Optional[str] = None,
        item: int = 0,
        **options: Any,
    ) -> Story:
        """The story of five images.

        Args:
            images: five, in the story's order: paths, contents of files (bytes) or open
                images; None for one that is missing.
            preset: see :func:`image_telling`.
            item: number of the story; its draws depend on it and the seed alone.
            **options: of :class:`ImageTelling`.

        Raises:
            UserError: if there are not five images, the extractor cannot be rebuilt, an image
                cannot be read (naming it), or an option does not fit.
        """
        return self.tell_albums([images], preset=preset, first_item=item, **options)[0]

    def tell_albums(
        self,
        albums: Sequence[Sequence[Optional[AnyImage]]],
        *,
        preset: Optional[str] = None,
        first_item: int = 0,
        batch_size: Optional[int] = None,
        **options: Any,
    ) -> list[Story]:
        """A story of each album, in their order.

        Args:
            albums: five images each, see :meth:`tell`.
            preset: see :func:`image_telling`.
            first_item: number of the first story.
            batch_size: stories at a time; it changes nothing but the speed.
            **options: of :class:`ImageTelling`.

        Raises:
            UserError: see :meth:`tell`.
        """
        telling = image_telling(preset, **options)
        self.check(telling)
        for album in albums:
            check_album(album)
        readable = [image for album in albums for image in album if image is not None]
        rows = iter(self.readable_features_of(readable))
        features = [[None if image is None else next(rows) for image in album]
                    for album in albums]  # fmt: skip
        items = range(first_item, first_item + len(albums))
        return list(self.stories(items, features, telling, batch_size=batch_size))

    def check(self, telling: ImageTelling) -> None:
        """
        Raises:
            UserError: if the models cannot tell such stories.
        """
        for name in ("topk", "beam"):
            most = len(self.task.target_dictionary) - 1
            if getattr(telling, name) > most:
                raise UserError(
                    f"`{name}` must be at most {most}, so many words are in the dictionary, but "
                    f"is {getattr(telling, name)} instead."
                )
        rules = self._rules(telling)
        positions = min(model.max_decoder_positions() for model in self.models) - 1
        if rules.max_length > positions:
            raise UserError(
                f"`max_words` must be at most {max(positions // NUM_IMAGES - 1, 1)} a sentence, "
                f"for which {self.files[0]} has positions, but is {telling.max_words} instead."
            )

    def stories(
        self,
        items: Sequence[int],
        features: Sequence[Features],
        telling: ImageTelling,
        *,
        batch_size: Optional[int] = None,
    ) -> Iterator[Story]:
        """Visual stories that are features already.

        Args:
            items: a number for each story. Its draws depend on it and the seed alone.
            features: for each story those of its five images, ``[R, D]`` each; None for a
                image that is missing.
            telling: how they are told.
            batch_size: stories at a time, by default 32 on a CPU and 128 elsewhere; it changes
                nothing but the speed.

        Yields:
            the stories, in their order.

        Raises:
            UserError: if an option does not fit, or features are not of the training data's shape.
        """
        self.check(telling)
        if batch_size is None:
            batch_size = 32 if self.device.type == "cpu" else 128
        if batch_size < 1:
            raise UserError(f"`batch_size` must be 1 or more, but is {batch_size} instead.")
        generator = self._build_generator(telling)
        for start in range(0, len(items), batch_size):
            batch = slice(start, start + batch_size)
            yield from self._generate(generator, items[batch], features[batch])

    def _rules(self, telling: ImageTelling) -> StoryRules:
        return StoryRules(
            self.task.target_dictionary,
            min_words_per_sentence=telling.min_words,
            max_words_per_sentence=telling.max_words,
            repetition_penalty=telling.repetition_penalty,
            end_after_punctuation=telling.end_after_punctuation,
            no_repeat_ngram=telling.no_repeat_ngram,
        )

    def _build_generator(self, telling: ImageTelling) -> Any:
        return self.task.build_generator(
            self.models,
            Namespace(
                beam=max(telling.beam, 1),
                temperature=telling.temperature,
                sampling=telling.draws,
                sampling_topk=telling.topk or -1,
                sampling_topp=telling.topp if telling.topp < 1 else -1.0,
            ),
            rules=self._rules(telling),
            allow_unk=telling.allow_unk,
            seed=telling.seed,
        )

    def _generate(
        self, generator: Any, items: Sequence[int], features: Sequence[Features]
    ) -> Iterator[Story]:
        rows = [self.collated(item, album) for item, album in zip(items, features)]
        sample = {
            "id": torch.tensor(list(items)),
            "net_input": {
                "features": torch.stack([x for x, _ in rows]).to(self.device),
                "padding_mask": torch.stack([mask for _, mask in rows]).to(self.device),
            },
        }
        for hypotheses in self.task.inference_step(generator, self.models, sample):
            line = self.task.target_dictionary.string(hypotheses[0]["tokens"].int().cpu())
            words = [sentence.split() for sentence in split_sentences(line)]
            sentences = [detokenize_story(sentence).strip() for sentence in words]
            yield Story(sentences, float(hypotheses[0]["score"]), words)

    def collated(self, item: int, album: Features) -> tuple[torch.Tensor, torch.Tensor]:
        """``[5R, D]`` features and ``[5R]`` where they are padding: a missing image is zeros in
        its place."""
        check_album(album)
        R, D = self.rows_per_image, self.feature_dim
        x = torch.zeros(NUM_IMAGES, R, D)
        padding_mask = torch.ones(NUM_IMAGES, R, dtype=torch.bool)
        for place, rows in enumerate(album):
            if rows is None:
                continue
            if rows.shape != (R, D):
                raise UserError(
                    f"features of image {place + 1} of story {item} must be [{R}, {D}], as "
                    f"{self.files[0]} was trained on, but are {list(rows.shape)}."
                )
            x[place] = torch.from_numpy(np.asarray(rows, dtype=np.float32))
            padding_mask[place] = False
        return x.view(NUM_IMAGES * R, D), padding_mask.view(NUM_IMAGES * R)


def check_album(album: Sequence[Any]) -> None:
    """
    Raises:
        UserError: if it is no list of five images, one of them there at least.
    """
    if isinstance(album, (str, bytes, Image.Image)):
        raise UserError(f"`images` must be a list, but is a {type(album).__name__}.")
    if len(album) != NUM_IMAGES:
        raise UserError(f"a story is told of {NUM_IMAGES} images, but there {_are(len(album))}.")
    if all(image is None for image in album):
        raise UserError(f"all {NUM_IMAGES} images are missing: there is nothing to tell of.")


def _are(number: int) -> str:
    return "is 1" if number == 1 else f"are {number}"
