"""Converts pretrained models to fairseq's form.

  fairseq-mm convert facebook-bart-base/ bart-base/     Hugging Face's BART
  fairseq-mm convert t5-base/ t5/                Hugging Face's T5 or mT5
  fairseq-mm convert fconv.pt story.pt --data data-bin/writingPrompts
  fairseq-mm convert f30k.npz f30k/                     Kiros's VSE
  fairseq-mm convert model_best.pth.tar f30k/ --vocabulary vocab.pkl     VSE++
  fairseq-mm convert models/encoder-43.pkl glac/        GLAC Net, Transtory-XL

The format of SOURCE is detected automatically.

A Hugging Face folder becomes a folder with model.pt, dict.txt and the subwords: for
fairseq-mm prepare videos --pretrained and fairseq-train --finetune-from-model. T5
becomes --arch t5. fairseq's published BART needs no conversion.

A checkpoint of fairseq's fconv_self_att of any size becomes a checkpoint of
conv_story in the file OUTPUT, with its dictionaries and, with fusion, the frozen
model. Without fusion, it can be the --pretrained-checkpoint of a new model.

The other models become a folder with checkpoint_best.pt and dict.txt, with which
data must be prepared, and cnn.pt, a trained image network for fairseq-mm extract
--weights. Beside X.npz are X.npz.pkl and X.npz.dictionary.pkl, beside encoder-N.pkl
decoder-N.pkl and vocab.pkl. The token <end> of GLAC Net and Transtory-XL becomes
<sent> and </s>, with the same logit: the order of the other words is unchanged, but
the loss at the end of a sentence grows by at most log 2.

States of optimizers are not converted. If a tensor does not fit, nothing is
written, and the exit status is 2.
"""

import argparse
import contextlib
import os
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import FLAG, Rows, flag
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError, file_errors

_FILE = {"metavar": "FILE"}
ARGUMENTS: Rows = {
    "source": ("Checkpoint or folder, as described above.", {"metavar": "SOURCE"}),
    "output": ("Folder or checkpoint to make.", {"metavar": "OUTPUT"}),
    "--overwrite": ("Replace OUTPUT.", FLAG),
    "--data": (
        "Folder with the dictionaries that the checkpoint was trained with: dict.wp_source.txt and "
        "dict.wp_target.txt, or of the languages that its options name.",
        {"metavar": "DIR"},
    ),
    "--vocabulary": (
        "Words of a model of VSE++, its NAME_vocab.pkl, or of GLAC Net or Transtory-XL (default: "
        "vocab.pkl beside the encoder).",
        _FILE,
    ),
}
_STORY_ARGUMENTS: Rows = {
    "--pretrained-checkpoint": (
        "Checkpoint of fairseq's on which a fusion model was trained, for its dropout and heads, "
        "which the fusion checkpoint lacks.",
        _FILE,
    ),
    # no default: an option that has a value counts as given, and other kinds of SOURCE refuse it
    "--compat": (
        "Attention to the prompt's padding: released, to reproduce the numbers of fairseq's model, "
        "or none (default: released).",
        {"choices": ("released", "none")},
    ),
}


_STORIES, _KIROS, _VSEPP = "fairseq's fconv_self_att", "Kiros's VSE", "VSE++"
_VISUAL_STORIES = "GLAC Net or Transtory-XL"
_HF_BART, _HF_T5 = "Hugging Face's BART", "Hugging Face's T5"
_MODEL_TYPES = {"bart": _HF_BART, "t5": _HF_T5, "mt5": _HF_T5}
# option -> kinds of SOURCE that accept it
_KINDS = {
    **dict.fromkeys(("data", "pretrained_checkpoint", "compat"), (_STORIES,)),
    "vocabulary": (_VSEPP, _VISUAL_STORIES),
}
_TRAIN = (
    'fairseq-train DATA --user-dir "$(fairseq-mm user-dir)" --optimizer adam --lr 1e-4 '
    "--batch-size 64"
)


class Converted(NamedTuple):
    """Report on a conversion: description of the source, notes on assumptions and omissions,
    description of the written files, and commands or options that use these files."""

    read: str
    notes: list[str]
    written: str
    usage: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_rows(parser, ARGUMENTS)
    group = parser.add_argument_group("fairseq's fconv_self_att")
    arguments.add_rows(group, _STORY_ARGUMENTS)


def run(args: argparse.Namespace) -> None:
    register_quietly()  # the readers of checkpoints import fairseq, which logs on import
    from fairseq_mm.conversion.output_folder import check_output

    kind, state = _detect_kind(args.source)
    for name, kinds in _KINDS.items():
        if name in arguments.given_options(args) and kind not in kinds:
            others = " and ".join(kinds)
            raise UserError(f"{flag(name)} is for {others}, but {args.source} is taken for {kind}.")
    # an output that cannot be written fails here, not after minutes of conversion
    is_file = kind == _STORIES
    check_output(args.output, overwrite=args.overwrite, reads=args.source, is_file=is_file)
    if kind in _MODEL_TYPES.values():
        converted = _convert_pretrained(args, kind)
    elif kind == _STORIES:
        converted = _convert_stories(args, state)
    else:
        converted = _convert_released(args, kind, state)
    print(f"{args.source}: {converted.read}")
    for note in converted.notes:
        print(f"note: {note}")
    print(f"{args.output}: {converted.written}")
    for line in converted.usage:
        print(line)


def _detect_kind(source: str) -> tuple[str, Mapping[str, Any]]:
    """Return the kind of SOURCE and, so that gigabytes are not read twice, the content of its
    checkpoint (empty for a folder or an archive)."""
    from fairseq_mm.conversion.foreign_checkpoint import read_foreign_checkpoint

    path = os.path.join(source, "config.json")
    if os.path.isfile(path):
        with file_errors(path):
            kind = read_json(path).get("model_type")
        if kind not in _MODEL_TYPES:
            raise UserError(
                f"{path}: `model_type` must be {', '.join(_MODEL_TYPES)}, but is {kind}. Folders "
                "of fairseq-mm export and of fairseq need no conversion."
            )
        return _MODEL_TYPES[kind], {}
    # an archive of NumPy, before the reader of checkpoints, which would report a damaged file
    with contextlib.suppress(Exception), zipfile.ZipFile(source) as archive:
        if any(name.endswith(".npy") for name in archive.namelist()):
            return _KIROS, {}
    state = read_foreign_checkpoint(source)
    if "cnn.linear.weight" in state and "cnn.bn.weight" in state:
        return _VISUAL_STORIES, state
    is_vsepp = "opt" in state and isinstance(state.get("model"), (list, tuple))
    return (_VSEPP if is_vsepp else _STORIES), state


def _list_files(folder: str) -> str:
    return ", ".join(sorted(os.listdir(folder)))


def _flags(options: Mapping[str, Any]) -> str:
    # layers are Python expressions with spaces, which a shell would split
    values = {name: f"'{x}'" if " " in str(x) else x for name, x in options.items()}
    return " ".join(
        flag(name) if value is True else f"{flag(name)} {value}" for name, value in values.items()
    )


def _convert_pretrained(args: argparse.Namespace, kind: str) -> Converted:
    from fairseq.models import ARCH_MODEL_REGISTRY

    # each conversion imports only its own module
    if kind == _HF_BART:
        from fairseq_mm.conversion.bart import convert_bart as convert
    else:
        from fairseq_mm.conversion.t5 import convert_t5 as convert
    result = convert(args.source, args.output)
    models = [("text only", result.arch, dict(result.options))]
    guided = f"vg_{result.arch}"
    if guided in ARCH_MODEL_REGISTRY:
        known = ARCH_MODEL_REGISTRY[guided].__dataclass.__dataclass_fields__
        # the option does not exist there: the decoder is as wide as the encoder
        rest = {name: x for name, x in result.options.items() if name != "decoder_embed_dim"}
        if result.arch.startswith("bart") and "encoder_layers" in rest:
            # the last two, as in the named sizes of BART; T5's default follows its depth
            count = rest["encoder_layers"]
            rest["fusion_encoder_layers"] = ",".join(map(str, range(max(1, count - 1), count + 1)))
        if all(name in known for name in rest):
            models.append(("with videos", guided, rest))
    checkpoint = os.path.join(args.output, "model.pt")
    usage = [f"data: fairseq-mm prepare videos ... --pretrained {args.output}"]
    for title, arch, options in models:
        words = ["fairseq-train ... --task video_summarization --arch", arch, _flags(options)]
        words.append(f"--finetune-from-model {checkpoint}")
        usage.append(f"{title}: {' '.join(filter(None, words))}")
    written = f"{result.parameters:,} parameters, {result.words:,} words: "
    return Converted(kind, result.notes, written + _list_files(args.output), usage)


def _convert_released(args: argparse.Namespace, kind: str, state: Mapping[str, Any]) -> Converted:
    """Convert a released model of Kiros et al., VSE++, GLAC Net or Transtory-XL."""
    from fairseq_mm.conversion import released_vse
    from fairseq_mm.conversion.released_visual_stories import read_released_visual_stories
    from fairseq_mm.conversion.released_vsepp import read_released_vsepp

    # tensors that are missing, or have other dimensions, raise one of many exceptions
    with file_errors(args.source, "is no model that can be converted"):
        if kind == _KIROS:
            released = released_vse.read_released_vse(args.source)
        elif kind == _VSEPP:
            released = read_released_vsepp(args.source, state, args.vocabulary)
        else:
            released = read_released_visual_stories(args.source, state, args.vocabulary)
    parameters, feature_dim = released_vse.convert_released(released, args.output)
    checkpoint, dictionary, network = (
        os.path.join(args.output, name)
        for name in (released_vse.CHECKPOINT, released_vse.DICTIONARY, released_vse.NETWORK)
    )
    if kind == _VISUAL_STORIES:
        data, criterion = "vist", "cross_entropy"
        use = "generate: fairseq-mm tell IMAGE IMAGE IMAGE IMAGE IMAGE --checkpoint "
        use += f"{args.output} --preset paper"
    else:
        data, criterion = "captions", f"pairwise_ranking {_flags(released.criterion)}"
        use = f"rank: fairseq-mm rank DATA --checkpoint {args.output}"
    features = f"of dimension {feature_dim}, as the model was trained on"
    if released.cnn_type:
        features = f"fairseq-mm extract ... --model {released.cnn_type} --weights {network}"
    # the model was trained on text of this tokenizer: other tokens are unknown to it
    tokenizer = released.tokenizer and f" {released.tokenizer}"
    return Converted(
        f"{released.tensors} tensors, all converted",
        released.notes,
        f"--arch {released.arch}, {parameters:,} parameters, {len(released.words):,} words: "
        f"{_list_files(args.output)}",
        [
            f"data: fairseq-mm prepare {data} ... --dictionary {dictionary}{tokenizer}",
            f"features: {features}",
            use,
            f"train: {_TRAIN} --task {released.task} --arch {released.arch} "
            f"{_flags(released.options)} --criterion {criterion} --finetune-from-model "
            f"{checkpoint}",
        ],
    )


def _convert_stories(args: argparse.Namespace, state: Mapping[str, Any]) -> Converted:
    """Convert a checkpoint of fairseq's fconv_self_att, whose content is ``state``."""
    from fairseq_mm.conversion import stories as converting
    from fairseq_mm.conversion.foreign_checkpoint import read_foreign_checkpoint
    from fairseq_mm.conversion.new_checkpoint import save_checkpoint

    checkpoint = converting.fairseq_stories(args.source, state)
    pretrained = None
    # fairseq's fusion checkpoint has the frozen weights, but not their dropout and heads
    if args.pretrained_checkpoint:
        path = args.pretrained_checkpoint
        pretrained = converting.fairseq_stories(path, read_foreign_checkpoint(path))
    if not args.data:
        raise UserError("--data DIR is needed: the new checkpoint carries its dictionaries.")
    source, target = (os.path.join(args.data, f"dict.{x}.txt") for x in checkpoint.languages)
    dictionaries = converting.load_story_dictionaries(
        (source, target), checkpoint.types, args.source
    )
    with file_errors(args.source, "cannot be converted"):
        result = converting.convert_stories(
            checkpoint, *dictionaries, compat=args.compat or "released", pretrained=pretrained
        )
    save_checkpoint(result.state, args.output)
    usage = [f"options: {_flags(result.options)}"]
    if result.frozen_options:
        usage.append(f"frozen part: {_flags(result.frozen_options)}")
    return Converted(
        f"--arch {checkpoint.arch}, {checkpoint.num_updates} updates",
        result.notes,
        f"--arch {result.arch}, {result.parameters:,} parameters",
        usage,
    )
