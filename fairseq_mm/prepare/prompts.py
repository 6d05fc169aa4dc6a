"""Makes a data folder of prompts with their stories.

The data is JSON lines, one pair per line:

  {"prompt": "[WP] You can't die.", "story": "It began with \\"a\\".\\n\\n..."}

Optional fields: "split" (train, valid or test) and "id". Text is split into words as in
WritingPrompts; line breaks become <newline>. The folder gets <split>.jsonl, with the pairs of a
split as such lines, and the binarised text for the task hierarchical_story. For language models it
gets the folders prompts and stories: the same texts, each binarised alone.
"""

import shutil
from pathlib import Path
from typing import Any, Callable, ClassVar, Optional

from fairseq_mm.data.input_files import SPLITS
from fairseq_mm.data.record_split import LANGUAGE_MODELS, PROMPTS, Record
from fairseq_mm.data.story_text import NEWLINE
from fairseq_mm.prepare.corpus import Example
from fairseq_mm.prepare.writer import FolderWriter, Vocabulary

SOURCE, TARGET = PROMPTS.sides


class PromptWriter(FolderWriter):
    """Writer of a data folder of prompts (side ``wp_source``) and stories (``wp_target``).

    ``story_words`` is the number of words to which stories are cut; 0 for whole stories.
    """

    kind = PROMPTS
    sides: ClassVar[dict[str, tuple[str, str]]] = {
        SOURCE: ("prompt_words", "unknown_prompt_words"),
        TARGET: ("story_words", "unknown_story_words"),
    }
    extra_files = frozenset(
        f"{folder}/{name}"
        for folder in LANGUAGE_MODELS
        for name in ("dict.txt", *(f"{split}.{end}" for split in SPLITS for end in ("bin", "idx")))
    )
    counts = (
        "pairs",
        "prompts",
        "prompt_words",
        "story_words",
        "stories_cut",
        "words_cut",
        "empty_pairs_skipped",
        "duplicate_pairs",
    )

    def __init__(
        self,
        tokenize: Callable[[str], list[str]],
        vocabularies: dict[str, Vocabulary],
        *,
        story_words: int = 1000,
        **options: Any,
    ) -> None:
        super().__init__(self._tokenize, vocabularies, **options)
        self._split_words = tokenize
        self.story_words = story_words
        self._training_prompts: Optional[set[int]] = None

    def begin_split(self, split: str) -> None:
        # hashes, because the texts themselves would not fit into a laptop's memory
        self._split = split
        self._prompts: set[int] = set()
        self._pairs: set[int] = set()

    def _tokenize(self, text: str) -> list[str]:
        words = self._split_words(text)
        # text of line breaks counts as empty
        return [] if all(word == NEWLINE for word in words) else words

    def encode(
        self, example: Example, counts: dict[str, int]
    ) -> Optional[tuple[Record, dict[str, list[str]]]]:
        (prompt,), (story,) = (self.tokenize_field(example, name) for name in ("prompt", "story"))
        if not prompt or not story:
            counts["empty_pairs_skipped"] += 1
            return None
        if 0 < self.story_words < len(story):
            # cut before the dictionary is made, as in the release: words of the rest do not count
            counts["stories_cut"] += 1
            counts["words_cut"] += len(story) - self.story_words
            story = story[: self.story_words]
        source, target = " ".join(prompt), " ".join(story)
        pair = hash((source, target))
        counts["pairs"] += 1
        counts["prompt_words"] += len(prompt)
        counts["story_words"] += len(story)
        counts["duplicate_pairs"] += pair in self._pairs
        self._prompts.add(hash(source))
        self._pairs.add(pair)
        return self.record(example), {SOURCE: [source], TARGET: [target]}

    def finish_split(self, counts: dict[str, int]) -> None:
        """Add to ``counts`` the number of distinct prompts of the split, and how many of these
        prompts also occur in train."""
        # only at the end of the split: a prompt has several stories, in any order
        counts["prompts"] = len(self._prompts)
        if self._split == "train":
            self._training_prompts = self._prompts
        elif self._training_prompts is not None:
            counts["prompts_in_train"] = len(self._prompts & self._training_prompts)

    def describe(self, counts: dict[str, int]) -> str:
        """Return the counts as text, with the mean lengths of Fan et al. 2018, Table 1."""
        whole_stories = counts["story_words"] + counts["words_cut"]
        lengths = f"{counts['prompt_words'] / counts['pairs']:,.1f} words a prompt"
        lengths += f", {whole_stories / counts['pairs']:,.1f} a story"
        if counts["words_cut"]:
            lengths += f" before the cut ({whole_stories:,} words)"
        return f"{super().describe(counts)}; on average {lengths}"

    def options(self) -> dict[str, object]:
        return {"story_words": self.story_words, **super().options()}

    def finish_folder(self, folder: Path, splits: list[str]) -> None:
        """Copy the binarised prompts and stories to the folders ``prompts`` and ``stories`` for
        language models."""
        for name, side in LANGUAGE_MODELS.items():
            # Copied and not linked: running fairseq-preprocess again in one of the folders would
            # otherwise change the file of the pairs.
            (folder / name).mkdir()
            shutil.copyfile(folder / f"dict.{side}.txt", folder / name / "dict.txt")
            for split in splits:
                for end in ("bin", "idx"):
                    pair = f"{split}.{SOURCE}-{TARGET}.{side}.{end}"
                    shutil.copyfile(folder / pair, folder / name / f"{split}.{end}")
