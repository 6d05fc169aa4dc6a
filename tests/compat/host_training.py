"""Program: train and generate with tasks of fairseq itself, and print the weights and the texts.

Arguments: a folder to work in, and one of the states "plain" (the package is not imported),
"user-dir" (every command gets --user-dir) and "active" (its repairs are active as well, as in a
program that has loaded a captioner). The last line of the output is one JSON object.
"""

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch

LETTERS = "abcdefgh"
SMALL_TRANSFORMER = (
    *("--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "10", "--encoder-layers", "1"),
    *("--encoder-attention-heads", "2", "--decoder-embed-dim", "8", "--decoder-layers", "1"),
    *("--decoder-ffn-embed-dim", "10", "--decoder-attention-heads", "2"),
)
SMALL_DECODER = (
    *("--decoder-embed-dim", "8", "--decoder-ffn-embed-dim", "12", "--decoder-layers", "2"),
    *("--decoder-attention-heads", "2"),
)
SMALL_WAV2VEC = (
    *("--encoder-layers", "1", "--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "12"),
    *("--encoder-attention-heads", "2", "--final-dim", "6", "--latent-vars", "4"),
    *("--latent-groups", "2", "--quantize-targets", "--conv-pos", "4", "--conv-pos-groups", "2"),
    *("--conv-feature-layers", "[(8, 10, 5), (8, 4, 4)]", "--num-negatives", "3"),
    *("--mask-length", "2", "--extractor-mode", "layer_norm"),
)
# else fairseq leaves out a last batch of fewer than eight
NONE_DROPPED = ("--required-batch-size-multiple", "1")
TRAINING = (
    *("--optimizer", "adam", "--lr", "0.02", "--cpu", "--seed", "3", "--log-format", "none"),
    *("--no-epoch-checkpoints", "--clip-norm", "0.5", *NONE_DROPPED),
)
# of trainings that stop within an epoch: PyTorch would wait five seconds for a worker to end
NO_WORKERS = ("--num-workers", "0")


def seed_masks():
    """Let fairseq draw its masks with the seed of --seed; its generator has no seed."""
    default_rng = np.random.default_rng

    def seeded(seed=None):
        return default_rng(np.random.randint(2**31) if seed is None else seed)

    np.random.default_rng = seeded


def main():
    seed_masks()
    folder, state = Path(sys.argv[1]), sys.argv[2]
    package = Path(__file__).parents[2] / "fairseq_mm"
    os.chdir(folder)
    write_texts()
    write_audio()
    run = Runner(() if state == "plain" else ("--user-dir", str(package)))
    results = {**translation(run), **language_model(run), **audio(run)}
    # the test would compare nothing if no state were another
    results["modules"] = "fairseq_mm.tasks" in sys.modules
    print(json.dumps(results))


class Runner:
    """Runs commands of fairseq in this process.

    Args:
        options: Options that every command gets.
    """

    def __init__(self, options):
        self.options = options

    def __call__(self, command, *arguments):
        """Return the command's output."""
        module = importlib.import_module(f"fairseq_cli.{command}")
        vars(importlib.import_module("fairseq.checkpoint_utils").save_checkpoint).pop("best", None)
        sys.argv = [f"fairseq-{command}", *map(str, arguments), *self.options]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            module.cli_main()
        return output.getvalue()


def write_texts():
    drawn = random.Random(5)
    for split, count in (("train", 31), ("valid", 5), ("test", 6)):
        lines = ["".join(drawn.choices(LETTERS, k=drawn.randint(3, 9))) for _ in range(count)]
        Path(f"{split}.src").write_text("".join(f"{' '.join(line)}\n" for line in lines))
        Path(f"{split}.tgt").write_text("".join(f"{' '.join(line[::-1])}\n" for line in lines))


def write_audio():
    """Arrays in the place of sounds, which the stand-in for soundfile reads."""
    drawn = np.random.default_rng(7)
    for split, count in (("train", 11), ("test", 4)):
        sizes = drawn.integers(700, 900, count)
        names = [f"{split}{i}.npy" for i in range(count)]
        for name, size in zip(names, sizes):
            np.save(name, drawn.normal(size=size).astype(np.float32))
        lines = [f"{name}\t{size}" for name, size in zip(names, sizes)]
        Path(f"{split}.tsv").write_text("\n".join([os.getcwd(), *lines]) + "\n")
        labels = ["".join(drawn.choice(list(LETTERS), 5)) for _ in names]
        Path(f"{split}.ltr").write_text("".join(f"{' '.join(x)}\n" for x in labels))
    Path("dict.ltr.txt").write_text("".join(f"{letter} 1\n" for letter in LETTERS))


def translation(run):
    texts = ("--source-lang", "src", "--target-lang", "tgt")
    files = [x for name in ("train", "valid", "test") for x in (f"--{name}pref", name)]
    run("preprocess", *texts, *files, "--destdir", "bin")
    options = ("bin", "--task", "translation", "--arch", "transformer", *texts)
    options = (*options, *SMALL_TRANSFORMER, *TRAINING, *NO_WORKERS, "--batch-size", "4")
    options = (*options, "--save-dir", "translation")
    # a training that is resumed, within an epoch and after its first one
    for updates in (3, 12, 20):
        run("train", *options, "--max-update", updates)
    generating = ("bin", *texts, "--path", "translation/checkpoint_last.pt", "--cpu", *NONE_DROPPED)
    generating = (*generating, *NO_WORKERS, "--beam", "3", "--min-len", "6", "--max-len-b", "9")
    return {
        "translation": digest("translation"),
        "translated": hypotheses(run("generate", *generating)),
        "translated without repeats": hypotheses(
            run("generate", *generating, "--no-repeat-ngram-size", "1")
        ),
    }


def language_model(run):
    files = [x for name in ("train", "valid", "test") for x in (f"--{name}pref", f"{name}.src")]
    run("preprocess", "--only-source", *files, "--destdir", "lm-bin")
    options = ("lm-bin", "--task", "language_modeling", "--arch", "transformer_lm")
    options = (*options, *SMALL_DECODER, *TRAINING, "--tokens-per-sample", "12")
    options = (*options, "--num-workers", "1")
    options = (*options, "--save-dir", "lm", "--max-tokens", "48")
    for epochs in (1, 3):
        run("train", *options, "--max-epoch", epochs)
    return {"language model": digest("lm"), "continued": continue_text("lm/checkpoint_last.pt")}


def continue_text(path):
    """Generate by fairseq's interfaces: its commands need numpy.compat, which numpy 2 lacks."""
    from fairseq import checkpoint_utils

    models, _, task = checkpoint_utils.load_model_ensemble_and_task([path])
    generator = task.build_generator(models, argparse.Namespace(beam=2, max_len_b=9))
    tokens = torch.tensor([[task.dictionary.eos(), 5, 7]])
    sample = {"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([3])}}
    found = task.inference_step(generator, models, sample)[0]
    return [[task.dictionary.string(x["tokens"]), x["score"].item()] for x in found]


def audio(run):
    data = (os.getcwd(), "--train-subset", "train", "--disable-validation", "--sample-rate", "100")
    data = (*data, "--max-tokens", "4000", "--max-sample-size", "900", "--min-sample-size", "10")
    # with a worker: without one, masks and dropout would draw from the same random numbers, in an
    # order that depends on the speed of two threads
    data = (*data, "--num-workers", "1")
    run(
        *("train", *data, "--task", "audio_pretraining", "--arch", "wav2vec2", *SMALL_WAV2VEC),
        *(*TRAINING, "--criterion", "wav2vec", "--save-dir", "wav2vec", "--max-update", "4"),
        *("--infonce", "--mask-prob", "0.5"),
    )
    task = ("--task", "audio_finetuning", "--labels", "ltr", "--autoregressive")
    run(
        *("train", *data, *task, "--arch", "wav2vec_seq2seq", "--criterion", "cross_entropy"),
        *("--w2v-path", "wav2vec/checkpoint_last.pt", *TRAINING, "--save-dir", "audio"),
        *("--max-update", "5", *SMALL_DECODER),
        # the decoder takes vectors of 512 from every encoder
        *("--decoder-embed-dim", "512", "--dropout", "0"),
    )
    generated = run(
        *("generate", os.getcwd(), *task, "--gen-subset", "test", "--cpu", "--beam", "3"),
        *("--path", "audio/checkpoint_last.pt", "--max-len-b", "9", "--max-tokens", "4000"),
        *NO_WORKERS,
        *NONE_DROPPED,
        *("--sample-rate", "100", "--max-sample-size", "900"),
    )
    return {
        "pretrained": digest("wav2vec"),
        "audio": digest("audio"),
        "transcribed": hypotheses(generated),
    }


def digest(folder):
    """Return the SHA-256 digest of all weights, and the position in the data."""
    state = torch.load(f"{folder}/checkpoint_last.pt", map_location="cpu", weights_only=False)
    found = hashlib.sha256()
    for name, weights in sorted(state["model"].items()):
        found.update(name.encode() + weights.numpy().tobytes())
    position = sorted(state["extra_state"]["train_iterator"].items())
    return [found.hexdigest(), position, sorted(state["extra_state"])]


def hypotheses(output):
    lines = [line for line in output.splitlines() if line.startswith(("H-", "P-"))]
    assert lines, output
    return lines


main()
