"""Converts pretrained models to fairseq's form, and BART and T5 back.

fairseq-mm convert facebook-bart-base/ bart-base/       a folder of Hugging Face's BART, T5 or mT5
fairseq-mm convert t5-base/ t5/
fairseq-mm convert checkpoints/checkpoint_best.pt back/ --to huggingface --data bart-base/
fairseq-mm convert pretrained_checkpoint.pt pretrained.pt --data data-bin/writingPrompts
fairseq-mm convert fusion_checkpoint.pt fusion.pt --data data-bin/writingPrompts \\
    --pretrained-checkpoint pretrained_checkpoint.pt
fairseq-mm convert f30k.npz f30k/                       Kiros's visual-semantic-embedding
fairseq-mm convert model_best.pth.tar f30k/ --vocabulary f30k_precomp_vocab.pkl         VSE++

What SOURCE is is found by its content.

A folder of Hugging Face's (config.json, model.safetensors or pytorch_model.bin, the tokenizer's
files) becomes a folder with model.pt, dict.txt and how text becomes tokens: give it to fairseq-mm
prepare videos as --pretrained, and its model.pt to fairseq-train as --finetune-from-model. BART
becomes fairseq's own, T5 --arch t5. With --to huggingface a checkpoint of either of the two, or a
folder with its model.pt, becomes such a folder again. fairseq's published BART needs no conversion.

A checkpoint of fairseq's fconv_self_att, any of its sizes, with fusion or without, of any version,
becomes one of conv_story, in the file OUTPUT. It carries its dictionaries and, with fusion, the
frozen model, and works with fairseq-generate, fairseq-validate, --restore-file,
--finetune-from-model, fairseq-mm tell and, without fusion, as --pretrained-checkpoint of a new one.

A model of Kiros's (X.npz with X.npz.pkl and X.npz.dictionary.pkl beside it) or of VSE++ becomes a
folder with checkpoint_best.pt, of vse_gru or vse_bow, and dict.txt: give it to fairseq-mm rank,
embed and retrieve, and to --finetune-from-model; data is prepared with its dict.txt. A network that
VSE++ has fine-tuned becomes cnn.pt beside them, for fairseq-mm extract --weights.

The new --arch and options are printed; optimizers' states are not converted. Every tensor is
accounted for, and exit status is 2, with nothing written, if one does not fit.
"""

import argparse
import os
from collections.abc import Mapping
from typing import Any, Optional

from fairseq_mm.cli import convert_stories, convert_vse
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError

# what SOURCE can be -> options that are for it alone
_OPTIONS: dict[str, tuple[str, ...]] = {
    "fairseq's fconv_self_att": (
        *("data", "source_dictionary", "target_dictionary", "pretrained_checkpoint", "compat"),
        *("layers_from_weights", "allow_unexpected"),
    ),
    "Kiros's VSE": (),
    "VSE++": ("vocabulary",),
    "Hugging Face's BART": ("encoder_json",),
    "Hugging Face's T5": (),
    "fairseq's BART": ("data",),
    "a T5 of --arch t5": (),
}
_MODEL_TYPES = {
    "bart": "Hugging Face's BART",
    "t5": "Hugging Face's T5",
    "mt5": "Hugging Face's T5",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="checkpoint or folder, see above")
    parser.add_argument("output", metavar="OUTPUT", help="the folder or checkpoint to make")
    parser.add_argument("--overwrite", action="store_true", help="replace OUTPUT")
    parser.add_argument(
        "--to", choices=("huggingface",), help="the other way: from fairseq's BART, or --arch t5"
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="folder with the dictionaries that the checkpoint was trained with: of BART dict.txt, "
        "encoder.json and vocab.bpe (default: the checkpoint's folder); of stories "
        "dict.wp_source.txt and dict.wp_target.txt, or of the languages that its options name",
    )
    parser.add_argument(
        "--encoder-json",
        metavar="FILE",
        help="GPT-2's numbers of pieces, for a BART of Hugging Face's (default: made from its "
        "merges, which gives GPT-2's own)",
    )
    convert_stories.add_arguments(parser.add_argument_group("fairseq's fconv_self_att"))
    convert_vse.add_arguments(parser.add_argument_group("VSE++"))


def run(args: argparse.Namespace) -> None:
    """
    Raises:
        UserError: if a file cannot be read or written, or a tensor does not fit.
    """
    _check_exists(args.source)
    if args.to is not None:
        kind, state = _kind_back(args)
    elif os.path.isdir(args.source):
        kind, state = _kind_of_folder(args.source), None
    else:
        kind, state = _kind_of_file(args.source)
    _check_options(args, kind)
    register_quietly()
    if kind == "fairseq's fconv_self_att":
        assert state is not None
        convert_stories.run(args, state)
        return
    if kind in ("Kiros's VSE", "VSE++"):
        convert_vse.run(args, state)
        return
    if kind == "Hugging Face's BART":
        from fairseq_mm.conversion.bart import convert_bart

        options = {"encoder_json": args.encoder_json}
        result = convert_bart(args.source, args.output, overwrite=args.overwrite, **options)
    elif kind == "Hugging Face's T5":
        from fairseq_mm.conversion.t5 import convert_t5

        result = convert_t5(args.source, args.output, overwrite=args.overwrite)
    elif kind == "a T5 of --arch t5":
        from fairseq_mm.conversion.t5_back import convert_t5_to_huggingface

        result = convert_t5_to_huggingface(
            args.source, args.output, overwrite=args.overwrite, state=state
        )
    else:
        from fairseq_mm.conversion.bart_back import convert_bart_to_huggingface

        result = convert_bart_to_huggingface(
            args.source, args.output, data=args.data, overwrite=args.overwrite, state=state
        )
    print(f"{args.source}: {kind}")
    for note in result.notes:
        print(f"note: {note}")
    names = ", ".join(sorted(os.listdir(result.folder)))
    print(f"{result.folder}: {result.parameters:,} parameters, {result.words:,} words: {names}")
    if args.to is None:
        for line in _usage(result):
            print(line)


def _kind_back(args: argparse.Namespace) -> tuple[str, Mapping[str, Any]]:
    """What is converted to Hugging Face's form, one of ``_OPTIONS``, and the checkpoint, which may
    be large and is read once."""
    register_quietly()  # what looks at the checkpoint imports fairseq
    from fairseq_mm.conversion.foreign_checkpoint import checkpoint_path, read_foreign_checkpoint
    from fairseq_mm.conversion.output_folder import check_output_folder
    from fairseq_mm.conversion.t5_back import is_t5

    path = checkpoint_path(args.source)
    check_output_folder(args.output, overwrite=args.overwrite, reads=path)
    state = read_foreign_checkpoint(path)
    return ("a T5 of --arch t5" if is_t5(state) else "fairseq's BART"), state


def _check_exists(source: str) -> None:
    if not os.path.exists(source):
        raise UserError(f"{source}: no such checkpoint. It is no folder either.")


def _kind_of_file(source: str) -> tuple[str, Optional[Mapping[str, Any]]]:
    """One of ``_OPTIONS``, and the content of a checkpoint, which may be large and is read once."""
    register_quietly()  # what looks at the checkpoint imports fairseq
    from fairseq_mm.conversion.foreign_checkpoint import read_foreign_checkpoint
    from fairseq_mm.conversion.released_vse import is_numpy_archive
    from fairseq_mm.conversion.released_vsepp import is_vsepp

    if is_numpy_archive(source):
        return "Kiros's VSE", None
    state = read_foreign_checkpoint(source)
    return ("VSE++" if is_vsepp(state) else "fairseq's fconv_self_att"), state


def _kind_of_folder(source: str) -> str:
    """One of ``_OPTIONS``."""
    if os.path.isfile(os.path.join(source, "config.json")):
        from fairseq_mm.conversion.huggingface_folder import read_config

        model_type = read_config(source)["model_type"]
        if model_type not in _MODEL_TYPES:
            raise UserError(
                f"{os.path.join(source, 'config.json')}: `model_type` must be "
                f"{', '.join(_MODEL_TYPES)}, but is {model_type}."
            )
        return _MODEL_TYPES[model_type]
    checkpoint = os.path.join(source, "model.pt")
    if os.path.isfile(checkpoint):
        raise UserError(
            f"{source}: is of fairseq's form already (it has a model.pt) and needs no conversion: "
            f"train with --finetune-from-model {checkpoint}; --to huggingface converts it back."
        )
    raise UserError(
        f"{source}: is no folder of a model: it has neither config.json, as Hugging Face's have, "
        "nor model.pt, as fairseq's."
    )


def _check_options(args: argparse.Namespace, kind: str) -> None:
    """Refuses options of other kinds."""
    for name in sorted({name for names in _OPTIONS.values() for name in names}):
        if getattr(args, name) in (None, False) or name in _OPTIONS[kind]:
            continue
        others = " and ".join(other for other, names in _OPTIONS.items() if name in names)
        raise UserError(
            f"--{name.replace('_', '-')} is for {others}, but {args.source} is taken for {kind}."
        )


def _usage(result: Any) -> list[str]:
    """The architectures that the new checkpoint trains, and the commands."""
    checkpoint = os.path.join(result.folder, "model.pt")
    lines = [f"data: fairseq-mm prepare videos ... --pretrained {result.folder}"]
    for title, arch, options in _architectures(result.arch, result.options):
        flags = "".join(f" {_flag(name, value)}" for name, value in options.items())
        lines.append(
            f"{title}: fairseq-train ... --task video_summarization --arch {arch}{flags} "
            f"--finetune-from-model {checkpoint}"
        )
    return lines


def _architectures(arch: str, options: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """(title, ``--arch``, options) of the text-only model and of the one that sees videos."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    found = [("text only", arch, dict(options))]
    guided = f"vg_{arch}"
    if guided in ARCH_MODEL_REGISTRY:
        known = ARCH_MODEL_REGISTRY[guided].__dataclass.__dataclass_fields__
        # the decoder's width is the encoder's
        rest = {name: x for name, x in options.items() if name != "decoder_embed_dim"}
        if arch.startswith("bart") and "encoder_layers" in rest:
            # the last two, as at the sizes that have names; T5's are so by themselves
            count = rest["encoder_layers"]
            rest["fusion_encoder_layers"] = ",".join(map(str, range(max(1, count - 1), count + 1)))
        if all(name in known for name in rest):
            found.append(("with videos", guided, rest))
    return found


def _flag(name: str, value: Any) -> str:
    option = f"--{name.replace('_', '-')}"
    return option if value is True else f"{option} {value}"
