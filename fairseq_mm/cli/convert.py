"""Converts pretrained models to fairseq's form.

  fairseq-mm convert facebook-bart-base/ bart-base/     Hugging Face's BART
  fairseq-mm convert t5-base/ t5/                Hugging Face's T5 or mT5
  fairseq-mm convert fconv.pt story.pt --data data-bin/writingPrompts
  fairseq-mm convert f30k.npz f30k/                     Kiros's VSE
  fairseq-mm convert model_best.pth.tar f30k/ --vocabulary vocab.pkl     VSE++
  fairseq-mm convert models/encoder-43.pkl glac/        GLAC Net, Transtory-XL

The format of SOURCE is detected automatically.

A Hugging Face folder (config.json, weights, tokenizer files) becomes a folder
with model.pt, dict.txt and the subwords. Give this folder to fairseq-mm prepare
videos as --pretrained, and its model.pt to fairseq-train as
--finetune-from-model. BART becomes fairseq's BART, T5 becomes --arch t5.
fairseq's published BART needs no conversion.

A checkpoint of fairseq's fconv_self_att of any size, with or without fusion,
becomes a checkpoint of conv_story in the file OUTPUT. OUTPUT contains the
dictionaries and, with fusion, the frozen model. It works with fairseq-generate,
fairseq-validate, --restore-file, --finetune-from-model, fairseq-mm tell and,
without fusion, as --pretrained-checkpoint of a new model.

A model of Kiros et al. (X.npz with X.npz.pkl and X.npz.dictionary.pkl in the
same folder) or of VSE++ becomes a folder with checkpoint_best.pt (vse_gru or
vse_bow) and dict.txt, for fairseq-mm rank, embed and retrieve. Prepare data with
this dict.txt. An image network that VSE++ has fine-tuned becomes cnn.pt in the
folder, for fairseq-mm extract --weights.

An encoder of GLAC Net or of Transtory-XL, with decoder-N.pkl and vocab.pkl in
the same folder (or --vocabulary), becomes a folder with
checkpoint_best.pt, dict.txt and its image network cnn.pt, for fairseq-mm tell.
The released token <end> becomes two tokens, <sent> and </s>, with the same logit.
The order of the other words by probability is unchanged, but perplexities are
larger: the loss at the end of a sentence grows by at most log 2.

The command prints the new --arch and options; states of optimizers are not
converted. If a tensor does not fit, nothing is written, and the exit status is 2.
"""

import argparse
import importlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import FLAG, Rows, flag
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError

_LISTED = 8  # names of a kind of tensors
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


class Layout(NamedTuple):
    """Conversion of one kind of SOURCE, such as Hugging Face's BART.

    Attributes:
        module: Module of ``fairseq_mm.conversion`` that converts from Hugging Face's format; empty
            for other formats.
        function: Name of the converting function in the module.
        options: Names of the options that this kind accepts, but not all other kinds.
    """

    module: str = ""
    function: str = ""
    options: tuple[str, ...] = ()


_STORIES, _KIROS, _VSEPP = "fairseq's fconv_self_att", "Kiros's VSE", "VSE++"
_TRAIN = (
    'fairseq-train DATA --user-dir "$(fairseq-mm user-dir)" --optimizer adam --lr 1e-4 '
    "--batch-size 64"
)
_VISUAL_STORIES = "GLAC Net or Transtory-XL"
_HF_BART, _HF_T5 = "Hugging Face's BART", "Hugging Face's T5"
LAYOUTS = {
    _STORIES: Layout(options=("data", "pretrained_checkpoint", "compat")),
    _KIROS: Layout(),
    _VSEPP: Layout(options=("vocabulary",)),
    _VISUAL_STORIES: Layout(options=("vocabulary",)),
    _HF_BART: Layout("bart", "convert_bart"),
    _HF_T5: Layout("t5", "convert_t5"),
}
_MODEL_TYPES = {"bart": _HF_BART, "t5": _HF_T5, "mt5": _HF_T5}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_rows(parser, ARGUMENTS)
    group = parser.add_argument_group("fairseq's fconv_self_att")
    arguments.add_rows(group, _STORY_ARGUMENTS)


def run(args: argparse.Namespace) -> None:
    register_quietly()  # the readers of checkpoints import fairseq, which logs on import
    kind, state = _detect_kind(args)
    for name in sorted({name for layout in LAYOUTS.values() for name in layout.options}):
        if arguments.is_given(args, name) and name not in LAYOUTS[kind].options:
            others = " and ".join(x for x, layout in LAYOUTS.items() if name in layout.options)
            raise UserError(f"{flag(name)} is for {others}, but {args.source} is taken for {kind}.")
    if kind == _STORIES:
        assert state is not None  # for mypy: this kind is detected by the checkpoint's content
        _convert_stories(args, state)
    elif LAYOUTS[kind].module:
        _convert_pretrained(args, kind)
    else:
        _convert_released(args, kind, state)


def _convert_pretrained(args: argparse.Namespace, kind: str) -> None:
    layout = LAYOUTS[kind]
    # imported by name, so that each conversion imports only its own module
    module = importlib.import_module(f"fairseq_mm.conversion.{layout.module}")
    options: dict[str, Any] = {name: getattr(args, name) for name in layout.options}
    convert = getattr(module, layout.function)
    result = convert(args.source, args.output, overwrite=args.overwrite, **options)
    print(f"{args.source}: {kind}")
    for note in result.notes:
        print(f"note: {note}")
    print(
        f"{result.folder}: {result.parameters:,} parameters, {result.words:,} words: "
        f"{_list_files(result.folder)}"
    )
    for line in _usage(result):
        print(line)


def _convert_released(
    args: argparse.Namespace, kind: str, state: Optional[Mapping[str, Any]]
) -> None:
    """Convert a released model of Kiros et al., VSE++, GLAC Net or Transtory-XL."""
    from fairseq_mm.conversion.output_folder import check_output
    from fairseq_mm.conversion.released_visual_stories import read_released_visual_stories
    from fairseq_mm.conversion.released_vse import convert_released, read_released_vse
    from fairseq_mm.conversion.released_vsepp import read_released_vsepp

    # an output that cannot be written fails here, not after minutes of conversion
    check_output(args.output, overwrite=args.overwrite, reads=args.source)
    if state is None:
        released = read_released_vse(args.source)
    elif kind == _VSEPP:
        released = read_released_vsepp(args.source, state, args.vocabulary)
    else:
        released = read_released_visual_stories(args.source, state, args.vocabulary)
    result = convert_released(released, args.output, overwrite=args.overwrite)
    print(f"{args.source}: {released.tensors} tensors, all converted")
    for note in released.notes:
        print(f"note: {note}")
    print(
        f"{result.folder}: --arch {released.arch}, {result.parameters:,} parameters, "
        f"{len(released.words):,} words: {_list_files(result.folder)}"
    )
    for line in _released_usage(result, is_story=kind == _VISUAL_STORIES):
        print(line)


def _list_files(folder: str) -> str:
    return ", ".join(sorted(os.listdir(folder)))


def _released_usage(result: Any, *, is_story: bool) -> list[str]:
    """Return lines of text with commands that prepare data, extract features, use the converted
    model and train it.
    """
    from fairseq_mm.conversion.new_checkpoint import format_flags
    from fairseq_mm.conversion.released_vse import CHECKPOINT, DICTIONARY, NETWORK

    released, folder = result.released, result.folder
    paths = {name: os.path.join(folder, name) for name in (CHECKPOINT, DICTIONARY, NETWORK)}
    if is_story:
        data, more, task, criterion = "vist", "", "visual_storytelling", "cross_entropy"
        use = f"generate: fairseq-mm tell IMAGE IMAGE IMAGE IMAGE IMAGE --checkpoint {folder} "
        use += "--preset paper"
    else:
        # the model was trained on text of this tokenizer: other tokens are unknown to it
        data, more, task = "captions", f" {released.tokenizer}", "multimodal_captioning"
        criterion = f"pairwise_ranking {' '.join(format_flags(released.criterion))}"
        use = f"rank: fairseq-mm rank DATA --checkpoint {folder}"
    features = f"of dimension {result.feature_dim}, as the model was trained on"
    if released.cnn_type:
        features = f"fairseq-mm extract ... --model {released.cnn_type} --weights {paths[NETWORK]}"
    return [
        f"data: fairseq-mm prepare {data} ... --dictionary {paths[DICTIONARY]}{more}",
        f"features: {features}",
        use,
        f"train: {_TRAIN} --task {task} --arch {released.arch} "
        f"{' '.join(format_flags(released.options))} --criterion {criterion} --finetune-from-model "
        f"{paths[CHECKPOINT]}",
    ]


def _detect_kind(args: argparse.Namespace) -> tuple[str, Optional[Mapping[str, Any]]]:
    """Return the kind of SOURCE (a key of ``LAYOUTS``), and the content of its checkpoint."""
    from fairseq_mm.conversion.foreign_checkpoint import read_foreign_checkpoint
    from fairseq_mm.conversion.released_vse import is_numpy_archive

    # the content is returned because a checkpoint of gigabytes must not be read twice
    source = args.source
    if not os.path.exists(source):
        raise UserError(f"{source}: no such checkpoint.")
    if os.path.isdir(source):
        return _detect_folder_kind(source), None
    # before the reader of checkpoints, which would report a damaged file
    if is_numpy_archive(source):
        return _KIROS, None
    state = read_foreign_checkpoint(source)
    if "cnn.linear.weight" in state and "cnn.bn.weight" in state:
        return _VISUAL_STORIES, state
    is_vsepp = "opt" in state and isinstance(state.get("model"), (list, tuple))
    return (_VSEPP if is_vsepp else _STORIES), state


def _detect_folder_kind(source: str) -> str:
    if os.path.isfile(os.path.join(source, "config.json")):
        from fairseq_mm.conversion.huggingface_folder import read_config

        model_type = read_config(source)["model_type"]
        if model_type not in _MODEL_TYPES:
            raise UserError(
                f"{os.path.join(source, 'config.json')}: `model_type` must be "
                f"{', '.join(_MODEL_TYPES)}, but is {model_type}."
            )
        return _MODEL_TYPES[model_type]
    raise UserError(
        f"{source}: has no config.json, as Hugging Face's folders have. A folder with model.pt is "
        "of fairseq's form already: train with --finetune-from-model."
    )


def _usage(result: Any) -> list[str]:
    """Return commands that prepare data for a converted BART or T5 and train it."""
    checkpoint = os.path.join(result.folder, "model.pt")
    lines = [f"data: fairseq-mm prepare videos ... --pretrained {result.folder}"]
    for title, arch, options in _architectures(result.arch, result.options):
        flags = "".join(
            f" {flag(name)}" if value is True else f" {flag(name)} {value}"
            for name, value in options.items()
        )
        lines.append(
            f"{title}: fairseq-train ... --task video_summarization --arch {arch}{flags} "
            f"--finetune-from-model {checkpoint}"
        )
    return lines


def _architectures(arch: str, options: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (title, ``--arch``, options) of each model that a converted one can start."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    architectures = [("text only", arch, dict(options))]
    guided = f"vg_{arch}"
    if guided in ARCH_MODEL_REGISTRY:
        known = ARCH_MODEL_REGISTRY[guided].__dataclass.__dataclass_fields__
        # the option does not exist there: the decoder is as wide as the encoder
        rest = {name: x for name, x in options.items() if name != "decoder_embed_dim"}
        if arch.startswith("bart") and "encoder_layers" in rest:
            # the last two, as in the named sizes of BART; T5's default follows its depth
            count = rest["encoder_layers"]
            rest["fusion_encoder_layers"] = ",".join(map(str, range(max(1, count - 1), count + 1)))
        if all(name in known for name in rest):
            architectures.append(("with videos", guided, rest))
    return architectures


def _convert_stories(args: argparse.Namespace, state: Mapping[str, Any]) -> None:
    """Convert the checkpoint ``args.source`` of fconv_self_att; ``state`` is its content."""
    from fairseq_mm.conversion import stories as converting
    from fairseq_mm.conversion.foreign_checkpoint import read_foreign_checkpoint
    from fairseq_mm.conversion.new_checkpoint import save_checkpoint
    from fairseq_mm.conversion.output_folder import check_output

    check_output(args.output, overwrite=args.overwrite, reads=args.source, is_file=True)
    checkpoint = converting.fairseq_stories(args.source, state)
    pretrained = None
    # fairseq's fusion checkpoint has the frozen weights, but not their dropout and heads
    if args.pretrained_checkpoint:
        path = args.pretrained_checkpoint
        pretrained = converting.fairseq_stories(path, read_foreign_checkpoint(path))
    if not args.data:
        raise UserError("--data DIR is needed: the new checkpoint carries its dictionaries.")
    source, target = checkpoint.languages
    files = (os.path.join(args.data, f"dict.{source}.txt"),)
    files += (os.path.join(args.data, f"dict.{target}.txt"),)
    dictionaries = converting.load_story_dictionaries(files, checkpoint.types, args.source)
    result = converting.convert_stories(
        checkpoint,
        *dictionaries,
        compat=args.compat or "released",
        pretrained=pretrained,
    )
    conversion = result.conversion
    print(f"{args.source}: --arch {checkpoint.arch}, {checkpoint.num_updates} updates")
    for line in _table(len(checkpoint.weights), conversion):
        print(line)
    # before the errors below, whose causes the table and the notes show
    for note in result.notes:
        print(f"note: {note}")
    if result.state is None or conversion.unexpected:
        raise UserError(
            f"{args.source}: {len(conversion.missing)} tensors are missing, "
            f"{len(conversion.unexpected)} have no place, and {len(conversion.mismatched)} have "
            "other shapes than its options say."
        )
    save_checkpoint(result.state, args.output)
    parameters = sum(x.numel() for x in conversion.weights.values())
    print(f"{args.output}: --arch {result.arch}, {parameters:,} parameters")
    print(f"options: {' '.join(_flag(name, value) for name, value in result.options.items())}")
    if result.frozen_options:
        options = " ".join(_flag(name, value) for name, value in result.frozen_options.items())
        print(f"frozen part: {options}")


def _flag(name: str, value: Any) -> str:
    # layers are Python expressions with spaces, which a shell would split
    text = f"'{value}'" if " " in str(value) else value
    return f"{flag(name)} {text}"


def _table(num_tensors: int, conversion: Any) -> list[str]:
    """Return a table with the numbers of read, converted, ... and mismatched tensors."""
    left_out = conversion.left_out
    lines = [
        f"{'tensors':<12}{'number':>7}",
        f"{'read':<12}{num_tensors:>7}",
        f"{'converted':<12}{len(conversion.used):>7}  into {len(conversion.weights)} tensors",
        f"{'left out':<12}{sum(map(len, left_out.values())):>7}",
    ]
    for reason, names in left_out.items():
        lines += _first([f"  {name}: {reason}" for name in names])
    for title in ("missing", "unexpected"):
        names = getattr(conversion, title)
        lines.append(f"{title:<12}{len(names):>7}")
        lines += _first([f"  {name}" for name in names])
    lines.append(f"{'mismatched':<12}{len(conversion.mismatched):>7}")
    return lines + _first(
        [
            f"  {name}: {list(shape)} in the checkpoint, {list(expected)} by its options"
            for name, shape, expected in conversion.mismatched
        ]
    )


def _first(lines: list[str]) -> list[str]:
    # a model of 15 layers has hundreds of tensors
    more = len(lines) - _LISTED
    return lines[:_LISTED] + [f"  and {more} more"] * (more > 0)
