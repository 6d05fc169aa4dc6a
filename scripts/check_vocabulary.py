"""Words that this project does not use, each with the field's word that stands for it.

    python scripts/check_vocabulary.py [FILE ...]

Without files: the package, scripts, examples and documents. Prints ``file:line: word -> word`` and
ends with status 1 if there is any.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("fairseq_mm", "scripts", "examples", "docs", "README.md", "CONTRIBUTING.md")
SUFFIXES = {".py", ".md", ".sh", ".yaml", ".html", ".css"}

# pattern, in which a space stands for an underscore and a change of case too -> what to write
WORDS = {
    "pictures?|photographs?|photo sequences?": "image; visual story; image sequence",
    "(story)?tellers?|album telling|tellings?": "generator; generate; hypothesis",
    "story rules|ruled search": "constraints; constrained search",
    "trained features|provenance of words": "extractor provenance; vocabulary fingerprint",
    "one.line loading": "load-state-dict mixin",
    "new parameters?|mark new|by origin": "added parameters; parameter groups",
    "(its|their|sentence.s) own image": "current-image attention",
    "(watch|look)(s|ed|ing)? at (an |the )?(images?|frames?|videos?)": "attention; attend to",
    r"grouped product|modules\.products?": "linear; grouped linear",
    "sliced cross.entropy|slice (mega)?bytes": "chunked cross entropy",
    "numbered unknowns?": "indexed OOV tokens",
    "real rows|is_visible|is_missing|is_real": "valid mask; attention mask; padding mask",
    "exchanged? images": "shuffled images",
    "judges'? sheets?": "annotation sheets",
    "(start|end|stop) signs?": "start token; end token",
    "rows of features|feature rows?": "regions or frames",
    "features of [^ ]+ channels|features' channels": "feature dimension",
}

_SPACE, _WORD = "[ _]", "[A-Za-z0-9]"
_PATTERNS = [
    (re.compile(f"(?<!{_WORD})(?:{words.replace(' ', _SPACE)})(?!{_WORD})", re.IGNORECASE), instead)
    for words, instead in WORDS.items()
]

# (files, pattern of what may stand there, reason)
EXCEPTIONS = [
    (
        "fairseq_mm/",
        r"self\.picture_fusion|(self|layer|encoder)\.pictures(_norm)?\b|, \"pictures\"",
        "parameters of released checkpoints",
    ),
    ("", r"picture[-_]dim", "an option in released checkpoints"),
    (
        "fairseq_mm/criterions/chunked_cross_entropy.py",
        r"sliced_cross_entropy|SlicedCrossEntropy|slice_megabytes",
        "the old name, which checkpoints have",
    ),
    (
        "fairseq_mm/optim/adam_parameter_groups.py",
        r"adam_by_origin|AdamByOrigin",
        "the old name, which checkpoints have",
    ),
    (
        "fairseq_mm/conversion/released_visual_stories.py",
        r"\.pictures(_norm)?\.|picture_fusion",
        "parameters of released checkpoints",
    ),
    ("", r"photo_sequences?|photo_flickr_id", "fields of VIST's and its challenge's files"),
    (
        "fairseq_mm/",
        r"[\"`]numbered_unknowns[\"`]",
        "a field of prepare.json, subwords.json and checkpoints",
    ),
    ("", r"https?://[^ )>]+", "addresses"),
    ("scripts/check_vocabulary.py", r".*", "this list"),
]


def files() -> Iterator[Path]:
    for name in FOLDERS:
        paths = [ROOT / name] if name.endswith(".md") else sorted((ROOT / name).rglob("*"))
        yield from (path for path in paths if path.suffix in SUFFIXES and path.is_file())


def unwanted(text: str, name: str) -> Iterator[tuple[int, str, str]]:
    """Line, word and the word to write instead of it.

    Args:
        text: a file's content.
        name: its path from the repository's root, by which exceptions are chosen.
    """
    allowed = [re.compile(pattern) for start, pattern, _ in EXCEPTIONS if name.startswith(start)]
    for number, line in enumerate(text.splitlines(), start=1):
        for pattern in allowed:
            line = pattern.sub("", line)
        line = re.sub("(?<=[a-z])(?=[A-Z])", " ", line)
        for pattern, instead in _PATTERNS:
            for match in pattern.finditer(line):
                yield number, match.group(), instead


def main(names: list[str]) -> int:
    count = 0
    for path in map(Path, names) if names else files():
        name = path.resolve().relative_to(ROOT).as_posix()
        for line, word, instead in unwanted(path.read_text(), name):
            print(f"{name}:{line}: {word!r} -> {instead}")
            count += 1
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
