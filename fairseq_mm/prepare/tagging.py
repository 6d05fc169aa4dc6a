"""Tagging of all splits of a prepared folder: ``text/<split>.txt`` -> ``<split>.tags``."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from tqdm import tqdm

from fairseq_mm.data.input_files import read_lines
from fairseq_mm.data.output_file import output_file
from fairseq_mm.data.prepared_files import check_prepared_file, digest_file, record_file
from fairseq_mm.data.taggers import installed_tagger, tag_lines
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.data_folder import locked_output


def tag_folder(
    folder: Path, *, tagger: Optional[str] = None, model: Optional[str] = None
) -> Iterator[str]:
    """Tag the text of a data folder.

    Args:
        folder: Folder made by ``fairseq-mm prepare captions``.
        tagger: ``nltk``, ``spacy`` or ``rules``; by default NLTK or spaCy, whichever is installed.
        model: Model of spaCy.

    Returns:
        One line for each file, as soon as it is written.

    Raises:
        UserError: If there is no text, another process writes to the folder, or the tagger or its
            model is not installed.
    """
    splits = sorted((folder / "text").glob("*.txt"))
    if not splits:
        raise UserError(
            f"{folder}/text: no .txt file; is {folder} a folder made by `prepare captions`?"
        )
    if model is not None and tagger not in (None, "spacy"):
        raise UserError(f"--model: is of spaCy, but the tagger is {tagger}.")
    tagger = tagger or installed_tagger()
    with locked_output(folder):
        yield from _tag_splits(folder, splits, tagger, model)


def _tag_splits(
    folder: Path, splits: list[Path], tagger: str, model: Optional[str]
) -> Iterator[str]:
    texts = {}
    for path in splits:
        check_prepared_file(path)
        texts[path.stem] = [line for _, line in read_lines(path)]
    for split, lines in texts.items():
        path = folder / f"{split}.tags"
        counts: Counter[str] = Counter()
        # the rules learn verbs from train, so that all splits are tagged consistently
        tagged = tag_lines(lines, tagger, model=model, known=texts.get("train", lines))
        record_file(folder, path.name, None)
        with output_file(path) as file:
            for tags in tqdm(tagged, desc=split, total=len(lines), unit=" lines", disable=None):
                counts.update(tags.split())
                file.write(f"{tags}\n")
        shares = ", ".join(
            f"{tag} {n / sum(counts.values()):.0%}" for tag, n in counts.most_common(4)
        )
        record_file(folder, path.name, digest_file(path))
        yield f"{path}: {len(lines):,} lines, {len(counts)} kinds of tags by {tagger} ({shares})"
