"""Subwords that are made in a moment: a BPE of GPT-2's form and a sentencepiece model."""

import io
import json
from pathlib import Path

# what both have pieces for
SENTENCES = ["learn how to plant roses in the garden .", "the guitar has six strings , tune it ."]
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("r", "o"), ("Ġ", "l"), ("e", "s")]


def write_gpt2(folder: Path) -> tuple[Path, Path]:
    """``encoder.json`` and ``vocab.bpe`` of 256 bytes and six merges, under shuffled numbers."""
    from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

    pieces = [*bytes_to_unicode().values(), *map("".join, MERGES)]
    folder.mkdir(parents=True, exist_ok=True)
    encoder, merges = folder / "encoder.json", folder / "vocab.bpe"
    encoder.write_text(json.dumps({piece: (i * 7) % 262 for i, piece in enumerate(pieces)}))
    merges.write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in MERGES))
    return encoder, merges


def write_sentencepiece(path: Path, *, sentences: list[str] = SENTENCES, size: int = 60) -> Path:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.getvalue())
    return path
