"""Counts the files of fairseq_mm that an image passes on its way to its caption.

    python benchmarks/caption_path.py dog.jpg --checkpoint checkpoints/m_rnn

Every call of a function of the package is a step in its file; printed are the files in the order in
which they are first entered, the functions, the changes from file to file, and how often each file
is entered from another. Loading the model is not counted, nor what fairseq and PyTorch do between.
"""

import argparse
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import fairseq_mm

PACKAGE = str(Path(fairseq_mm.__file__).parent)


class Way:
    """The way of the calls through the package's files."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.functions: set[tuple[str, str]] = set()

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(PACKAGE):
            return
        self.functions.add((file, frame.f_code.co_qualname if sys.version_info >= (3, 11) else ""))
        if not self.files or self.files[-1] != file:
            self.files.append(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image")
    parser.add_argument("--checkpoint", required=True)
    args = parser.parse_args()
    model = fairseq_mm.from_pretrained(args.checkpoint, device="cpu")
    model.generate(args.image)  # what is read once, such as the extractor's weights
    path = Way()
    threading.setprofile(path)
    sys.setprofile(path)
    (best,) = model.generate(args.image)
    sys.setprofile(None)
    threading.setprofile(None)
    entered = Counter(path.files)
    for file, times in entered.items():
        print(f"{times:4} {Path(file).relative_to(PACKAGE)}")
    print(
        f"{len(entered)} files, {len(path.functions)} functions, {len(path.files) - 1} changes of "
        f"file: {best.text}"
    )


if __name__ == "__main__":
    main()
