"""The demo's five tasks: what is drawn, which commands run, and how their results are checked.

Each task has a folder in the folder of all results, and a class with the same four methods:
``draw`` and ``learn`` run its steps, ``verdicts`` and ``baseline`` check test items that training
has not shown. The baseline gives every test item the same answer, the most common one.
"""

from pathlib import Path
from typing import ClassVar

from demo_task import DemoTask
from drawings import clip_collection, collection, tale_collection
from drawings.clip_collection import SummaryVerdict
from drawings.records import Verdict

from fairseq_mm.data.input_files import read_objects
from fairseq_mm.data.story_text import split_sentences

EXTRACT_CAPTIONED = "Extract features of the captioned images"
FRESH = "fresh-0001"  # story of five images that belongs to no split


class Captions(DemoTask):
    """Captions of images by an m-RNN."""

    name = "captions"
    title = "Captions of images"
    about = (
        "An m-RNN writes a caption of an image. Of two things, it says how one lies to the "
        "other. Every second test image has a combination of things that no captioned training "
        "image has."
    )
    items = "captions"
    right = "the caption names size, colour and shape of each thing, and how one lies to the other"
    task = "multimodal_captioning"
    model = (
        "--arch m_rnn --dropout 0.1 --embedding-dropout 0.1 --recurrent-dropout 0 "
        "--feature-dropout 0.1"
    )
    training = "--lr 3e-3 --clip-norm 5"
    steps = 7
    drawn = "Prepare captions"

    @property
    def kinds(self) -> dict[str, str]:
        return collection.IMAGE_KINDS

    def draw(self) -> None:
        self._draw("Draw images", "collection.draw_images", sizes=self.sizes.captions.splits)
        self._command(
            self.drawn,
            *("fairseq-mm prepare captions", self.folder / "captions.jsonl"),
            *("--output", self.data, "--overwrite"),
        )

    def learn(self) -> None:
        features = self.data / "features.h5"
        self._extract(EXTRACT_CAPTIONED, self.folder / "images", "", features)
        sizes = self.sizes.captions
        texts = sizes.train * collection.CAPTIONS_PER_IMAGE
        self._train("Train the captioning model", self.data, texts, sizes, "cross_entropy")
        generated, scores = self.folder / "generated.jsonl", self.folder / "scores.json"
        self._command(
            "Caption the test images",
            *("fairseq-mm caption", self.data, "--split test --checkpoint", self.checkpoints),
            *("--device cpu --output", generated),
        )
        self._command(
            "Score the captions",
            *("fairseq-mm score", generated, "--data", self.data, "--split test"),
            *("--metrics bleu,rouge_l,cider --json", scores),
        )
        self._command(
            "Show all captions on a page",
            *("fairseq-mm report --data", self.data, "--split test --hypotheses", generated),
            *("--images", self.folder / "images", "--metrics bleu,rouge_l,cider --title captions"),
            *("--output", self.folder / "page.html"),
        )

    def texts(self) -> dict[str, str]:
        """Return the generated caption of each test image."""
        return _read_texts(self.folder / "generated.jsonl")

    def verdicts(self) -> list[Verdict]:
        return collection.check_captions(self.folder, self.texts())

    def baseline(self) -> list[Verdict]:
        caption = collection.most_common_caption(self.folder)
        return collection.check_captions(self.folder, dict.fromkeys(self.texts(), caption))


class VisualStories(DemoTask):
    """Stories of five images by a GLAC with a non-local block."""

    name = "visual_stories"
    title = "Visual stories"
    about = (
        "A GLAC with a non-local block writes a sentence for each of five images. From one "
        "image to the next, one thing changes."
    )
    items = "sentences of visual stories"
    right = "the sentence names the change from the image before, and the things that take part"
    task = "visual_storytelling"
    model = (
        "--arch glac_non_local --picture-dim 256 --encoder-hidden-dim 128 --glocal-dim 256 "
        "--embedding-dim 64 --hidden-dim 256 --decoder-layers 1 --encoder-dropout 0 --dropout 0.1 "
        "--embedding-dropout 0"
    )
    training = "--lr 1.8e-3 --warmup-updates 50 --clip-norm 5"
    # trained with seeds 1, 2 and 3, the model writes 468, 494 and 486 of 500 sentences right
    seed_offset = 1
    steps = 6
    drawn = "Prepare stories"

    @property
    def kinds(self) -> dict[str, str]:
        return collection.SENTENCE_KINDS

    def draw(self) -> None:
        sizes = self.sizes.stories.splits
        self._draw("Draw stories", "collection.draw_with_fresh_story", sizes=sizes)
        self._command(
            self.drawn,
            *("fairseq-mm prepare stories", self.folder / "stories.jsonl"),
            *("--output", self.data, "--overwrite"),
        )

    def learn(self) -> None:
        title, images = "Extract features of the stories' images", self.folder / "images"
        self._extract(title, images, "--grid", self.data / "features.h5")
        sizes = self.sizes.stories
        self._train("Train the story model", self.data, sizes.train, sizes, "cross_entropy")
        self._command(
            "Tell the test stories",
            *("fairseq-mm tell", self.data, "--split test --checkpoint", self.checkpoints),
            *("--device cpu --output", self.folder / "generated.jsonl"),
        )
        names = collection.image_names(FRESH)
        self._command(
            "Tell a story of five fresh images",
            *("fairseq-mm tell", *(self.folder / "fresh" / "images" / name for name in names)),
            *("--checkpoint", self.checkpoints, "--weights", self.weights, "--device cpu"),
            *("--html", self.folder / "page.html", "--output", self.folder / "fresh.jsonl"),
        )

    def texts(self) -> dict[str, list[str]]:
        """Return the generated sentences of each test story."""
        return {
            collection.get_story_name(record["id"].split("\t")): split_sentences(
                record["hypothesis"]
            )
            for _, record in read_objects(self.folder / "generated.jsonl")
        }

    def verdicts(self) -> list[Verdict]:
        return collection.check_stories(self.folder, self.texts())

    def baseline(self) -> list[Verdict]:
        sentences = collection.most_common_sentences(self.folder)
        return collection.check_stories(self.folder, dict.fromkeys(self.texts(), sentences))


class Search(DemoTask):
    """Images found by a sentence, with an image-sentence embedding."""

    name = "search"
    title = "Images found by a sentence"
    about = (
        "An image-sentence embedding (VSE with a GRU) ranks new images for a sentence. The "
        "three nearest are shown."
    )
    items = "images found first"
    right = "the sentence is true of the image that is found first"
    task = "multimodal_captioning"
    model = "--arch vse_gru --word-dim 48 --embed-dim 96 --feature-scaling root"
    training = "--lr 4e-3 --clip-norm 2"
    steps = 4
    drawn = "Draw images to search"

    def draw(self) -> None:
        counts = {"images": self.sizes.photos, "queries": self.sizes.queries}
        self._draw(self.drawn, "collection.draw_photos", **counts)

    def learn(self) -> None:
        self.runner.wait_for(self.drawn)
        self.runner.wait_for(EXTRACT_CAPTIONED)
        captions = self.sizes.captions
        sizes = captions._replace(epochs=self.sizes.search_epochs, batch=4 * captions.batch)
        texts = sizes.train * collection.CAPTIONS_PER_IMAGE
        data, images = self.root / Captions.name / "data", self.folder / "images"
        self._train("Train the embedding", data, texts, sizes, "pairwise_ranking")
        self._command(
            "Index the images",
            *("fairseq-mm index", images, "--checkpoint", self.checkpoints),
            *("--weights", self.weights, "--device cpu"),
        )
        self._command(
            "Search the images",
            *("fairseq-mm search", images, "--queries", self.folder / "queries.txt"),
            *("--top 3 --output", self.folder / "found.jsonl"),
        )

    def found(self) -> dict[str, list[str]]:
        """Return the names of the images found for each query, the nearest first."""
        names: dict[str, list[str]] = {}
        for _, record in read_objects(self.folder / "found.jsonl"):
            names.setdefault(record["query"], []).append(record["id"])
        return names

    def verdicts(self) -> list[Verdict]:
        pairs = [(query, names[0]) for query, names in self.found().items()]
        return collection.check_found(self.folder, pairs)

    def baseline(self) -> list[Verdict]:
        queries = list(self.found())
        of_all = [
            collection.check_found(self.folder, [(query, name) for query in queries])
            for name in sorted(path.name for path in (self.folder / "images").glob("*.jpg"))
        ]
        return max(of_all, key=lambda verdicts: sum(verdict.right for verdict in verdicts))


class Tales(DemoTask):
    """Stories of prompts by a convolutional sequence-to-sequence model."""

    name = "prompts"
    title = "Stories of prompts"
    about = (
        "A convolutional sequence-to-sequence model with gated self-attention tells a story "
        "about a prompt. The prompt has five facts; the story invents a guard."
    )
    items = "stories of prompts"
    right = (
        "the story has the five facts of the prompt in their places, and the same guard throughout"
    )
    task = "hierarchical_story"
    model = (
        "--arch conv_story_tiny --encoder-embed-dim 64 --decoder-embed-dim 64 "
        "--decoder-out-embed-dim 64 --encoder-layers [(64,3)]*2 --decoder-layers [(64,4)]*3"
    )
    training = "--lr 3e-3 --clip-norm 1"
    steps = 4
    drawn = "Prepare prompts"

    def draw(self) -> None:
        self._draw(
            "Write prompts and stories",
            "tale_collection.write_tales",
            sizes=self.sizes.tales.splits,
        )
        self._command(
            self.drawn,
            *("fairseq-mm prepare prompts", self.folder / "tales.jsonl"),
            "--source-threshold 1 --target-threshold 1",
            *("--output", self.data, "--overwrite"),
        )

    def learn(self) -> None:
        sizes = self.sizes.tales
        self._train("Train the model of prompts", self.data, sizes.train, sizes, "cross_entropy")
        self._command(
            "Tell stories of the test prompts",
            *("fairseq-mm tell --prompts", self.folder / "prompts.txt", "--preset greedy"),
            *("--min-len 1 --checkpoint", self.checkpoints),
            *("--device cpu --output", self.folder / "generated.jsonl"),
        )

    def texts(self) -> list[str]:
        """Return the generated story of each test prompt."""
        records = read_objects(self.folder / "generated.jsonl")
        return [record["hypothesis"] for _, record in records]

    def verdicts(self) -> list[Verdict]:
        return tale_collection.check_tales(self.folder, self.texts())

    def baseline(self) -> list[Verdict]:
        story = tale_collection.most_common_tale(self.folder)
        return tale_collection.check_tales(self.folder, [story] * self.sizes.tales.test)


class Summaries(DemoTask):
    """Summaries of clips and their transcripts by a small VG-T5."""

    name = "summaries"
    title = "Summaries of clips"
    about = (
        "A VG-T5 reads what somebody says and the frames of a clip. Only the transcript tells who "
        "speaks and where, and only the frames show what happens. To show that the summary needs "
        "both, each transcript is also summarized with the frames of another clip."
    )
    items = "summaries of clips"
    right = (
        "the summary names who speaks and where, as the transcript tells, and what happens in the "
        "frames"
    )
    task = "video_summarization"
    model = (
        "--arch vg_t5_tiny --model-dim 64 --head-dim 16 --attention-heads 4 --ffn-dim 128 "
        "--encoder-layers 2 --fusion-dim 64 --video-encoder-layers 0 --dropout 0"
    )
    training = "--lr 4e-3 --warmup-updates 50 --clip-norm 1"
    steps = 8
    drawn = "Prepare clips"
    # name of a file of inputs without its ending -> what the model reads
    inputs: ClassVar = {
        "test": "transcript and frames",
        "other_frames": "transcript and frames of another clip",
    }

    def draw(self) -> None:
        self._draw("Draw clips", "clip_collection.draw_clips", sizes=self.sizes.clips.splits)
        self._command(
            self.drawn,
            *("fairseq-mm prepare videos", self.folder / "clips.jsonl"),
            *("--output", self.data, "--overwrite"),
        )

    def learn(self) -> None:
        frames, features = self.folder / "frames.h5", self.data / "features.h5"
        title = "Extract features of the frames"
        self._extract(title, self.folder / "clips", "--ids path", frames)
        self.runner.call(
            "Join the frames of each clip",
            "drawings.clip_collection.join_frames",
            folder=self.folder,
            store=frames,
        )
        self._command(
            "Import the features of the clips",
            *("fairseq-mm store import", self.folder / "clips.npz", "--overwrite"),
            *("--output", features),
            shown=lambda line: "",  # remarks on extractors; the joined features have none
        )
        sizes = self.sizes.clips
        self._train("Train the summary model", self.data, sizes.train, sizes, "cross_entropy")
        for name, what in self.inputs.items():
            self._command(
                f"Summarize {what}",
                *("fairseq-mm summarize", self.folder / f"{name}.jsonl", "--features", features),
                *("--checkpoint", self.checkpoints, "--device cpu"),
                *("--output", self.folder / f"generated_{name}.jsonl"),
            )

    def texts(self, name: str = "test") -> dict[str, str]:
        """Return the generated summary of each test clip for one of the ``inputs``."""
        return _read_texts(self.folder / f"generated_{name}.jsonl")

    def verdicts(self) -> list[SummaryVerdict]:
        return clip_collection.check_summaries(self.folder, self.texts())

    def swapped(self, *, of_transcript: bool) -> list[SummaryVerdict]:
        """Return the verdicts on summaries of a transcript with the frames of another clip.

        They are compared with the clip of the transcript, or with the clip of the frames.
        """
        texts = self.texts("other_frames")
        return clip_collection.check_summaries(self.folder, texts, of_next=of_transcript)

    def baseline(self) -> list[SummaryVerdict]:
        summary = clip_collection.most_common_summary(self.folder)
        return clip_collection.check_summaries(self.folder, dict.fromkeys(self.texts(), summary))


def _read_texts(path: Path) -> dict[str, str]:
    return {record["id"]: record["hypothesis"] for _, record in read_objects(path)}
