"""Checks the options that a checkpoint contains, before a task or model is built from them.

All options must be plain values that refer to nothing outside of the file. fairseq passes some
options to ``eval``, so that even a file of tensors and strings could run code. The table
``EVALUATED`` lists the functions of fairseq that do so, with their options; :func:`check_options`
refuses a checkpoint if one of these options is not a literal of the expected type.

The table covers fairseq 0.12.2 and fairseq-fixed 0.12.3.1. A test searches the source of the
installed fairseq for calls of ``eval`` and fails if one is missing in the table.
"""

import os
import re
import stat
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

import numpy as np

from fairseq_mm.compat.literals import LONGEST_TEXT, parse_literal
from fairseq_mm.errors import UserError

_MOST_VALUES = 100_000  # fairseq's configuration has some thousands
_REFERENCE = re.compile(r"\$\{[A-Za-z0-9_.]+\}")
_DEEPEST = 100  # fairseq's configuration has a few levels
# options that may name input files; --log-file and --tensorboard-logdir name outputs
_READING = re.compile(
    r"cfg\.(model|task|criterion|bpe|tokenizer|scoring)\b|args\.(?!log_file|tensorboard_logdir)"
)

FLAG = "True or False"
FLAGS = "True, False or a list of them, such as '[True] + [False] * 5'"
NUMBERS = "numbers, such as '(0.9, 0.98)'"
LAYERS = "a list of layers, such as '[(512, 4)] * 4 + [(768, 4)] * 2'"
DICTIONARY = 'a dictionary of literals, such as \'{"name": "linformer"}\''
LITERALS = 'a tuple of literals, such as \'("lm.bin", "lexicon.txt", 2, -1)\''

# file (in fairseq unless it names fairseq_cli) and function -> options that the function evaluates
EVALUATED: dict[str, dict[str, str]] = {
    "criterions/ctc.py:CtcCriterion.__init__": {"wer_args": LITERALS},
    "data/audio/raw_audio_dataset.py:RawAudioDataset.__init__": {
        "conv_feature_layers": LAYERS,
        "feature_encoder_spec": LAYERS,
    },
    "data/multilingual/multilingual_data_manager.py:MultilingualDatasetManager.prepare": {
        "left_pad_source": FLAG,
        "left_pad_target": FLAG,
    },
    "distributed/utils.py:_pipeline_parallel_pre_init": {
        "pipeline_balance": NUMBERS,
        "pipeline_devices": NUMBERS,
        "pipeline_encoder_devices": NUMBERS,
        "pipeline_decoder_devices": NUMBERS,
    },
    "model_parallel/models/pipeline_parallel_transformer/layers.py:"
    "TransformerDecoderOutputLayer.__init__": {"adaptive_softmax_cutoff": NUMBERS},
    "model_parallel/models/pipeline_parallel_transformer/model.py:"
    "PipelineParallelTransformerModel.build_model": {
        "pipeline_balance": NUMBERS,
        "pipeline_devices": NUMBERS,
    },
    "model_parallel/models/pipeline_parallel_transformer/model.py:TransformerEncoder.__init__": {
        "pipeline_encoder_balance": NUMBERS,
        "pipeline_encoder_devices": NUMBERS,
    },
    "model_parallel/models/pipeline_parallel_transformer/model.py:TransformerDecoder.__init__": {
        "pipeline_decoder_balance": NUMBERS,
        "pipeline_decoder_devices": NUMBERS,
    },
    "models/fconv.py:FConvModel.build_model": {
        "encoder_layers": LAYERS,
        "decoder_layers": LAYERS,
        "decoder_attention": FLAGS,
    },
    "models/fconv_lm.py:FConvLanguageModel.build_model": {
        "decoder_layers": LAYERS,
        "decoder_attention": FLAGS,
        "adaptive_softmax_cutoff": NUMBERS,
    },
    "models/fconv_self_att.py:FConvModelSelfAtt.build_model": {
        "pretrained": FLAG,
        "encoder_layers": LAYERS,
        "encoder_attention": FLAGS,
        "decoder_layers": LAYERS,
        "decoder_attention": FLAGS,
        "self_attention": FLAGS,
        "project_input": FLAG,
        "gated_attention": FLAG,
        "downsample": FLAG,
    },
    "models/hubert/hubert.py:HubertModel.__init__": {"conv_feature_layers": LAYERS},
    "models/lightconv.py:LightConvDecoder.__init__": {"adaptive_softmax_cutoff": NUMBERS},
    "models/lightconv_lm.py:LightConvLanguageModel.build_model": {
        "character_filters": LAYERS,
        "adaptive_input_cutoff": NUMBERS,
    },
    "models/lstm.py:LSTMModel.build_model": {
        "decoder_attention": FLAGS,
        "adaptive_softmax_cutoff": NUMBERS,
    },
    "models/lstm_lm.py:LSTMLanguageModel.build_model": {"adaptive_softmax_cutoff": NUMBERS},
    "models/speech_to_text/s2t_wav_transformer.py:SpeechWavTransformerEncoder.__init__": {
        "conv_feature_layers": LAYERS
    },
    "models/transformer/transformer_decoder.py:TransformerDecoderBase.build_output_projection": {
        "adaptive_softmax_cutoff": NUMBERS
    },
    "models/transformer_lm.py:TransformerLanguageModel.build_model": {
        "character_filters": LAYERS,
        "adaptive_input_cutoff": NUMBERS,
    },
    "models/wav2vec/wav2vec.py:Wav2VecModel.__init__": {"conv_feature_layers": LAYERS},
    "models/wav2vec/wav2vec.py:Wav2VecModel.__init__.make_aggregator": {
        "conv_aggregator_layers": LAYERS
    },
    "models/wav2vec/wav2vec2.py:Wav2Vec2Model.__init__": {"conv_feature_layers": LAYERS},
    "models/wav2vec/wav2vec2.py:Wav2Vec2Model._get_feat_extract_output_lengths": {
        "conv_feature_layers": LAYERS
    },
    # the transformer's options are one flat list or in sections of encoder and decoder
    "modules/multihead_attention.py:MultiheadAttention.__init__": {
        "xformers_att_config": DICTIONARY,
        "encoder_xformers_att_config": DICTIONARY,
        "decoder_xformers_att_config": DICTIONARY,
    },
    "optim/adafactor.py:FairseqAdafactor.optimizer_config": {"adafactor_eps": NUMBERS},
    "optim/adam.py:FairseqAdam.optimizer_config": {"adam_betas": NUMBERS},
    "optim/adamax.py:FairseqAdamax.optimizer_config": {"adamax_betas": NUMBERS},
    "optim/cpu_adam.py:FairseqCPUAdam.optimizer_config": {"adam_betas": NUMBERS},
    "optim/fused_lamb.py:FairseqLAMB.optimizer_config": {"lamb_betas": NUMBERS},
    "tasks/multilingual_translation.py:MultilingualTranslationTask.update_args": {
        "left_pad_source": FLAG,
        "left_pad_target": FLAG,
    },
    "tasks/online_backtranslation.py:OnlineBackTranslationTask.setup_task": {
        "left_pad_source": FLAG,
        "left_pad_target": FLAG,
    },
    # fairseq's examples, which another --user-dir may import
    "examples/data2vec/models/data2vec_audio.py:Data2VecAudioModel.__init__": {
        "conv_feature_layers": LAYERS
    },
    "examples/data2vec/models/data2vec_audio.py:"
    "Data2VecAudioModel._get_feat_extract_output_lengths": {"conv_feature_layers": LAYERS},
    "examples/data2vec/models/modalities/audio.py:AudioEncoder.__init__": {
        "feature_encoder_spec": LAYERS
    },
    "examples/laser/laser_src/laser_lstm.py:LSTMModel.build_model": {"decoder_zero_init": FLAG},
    "examples/laser/laser_src/laser_task.py:LaserTask.setup_task": {
        "left_pad_source": FLAG,
        "left_pad_target": FLAG,
    },
    "examples/speech_recognition/models/vggtransformer.py:VGGTransformerModel.build_encoder": {
        "vggblock_enc_config": LAYERS,
        "transformer_enc_config": LAYERS,
    },
    "examples/speech_recognition/models/vggtransformer.py:VGGTransformerModel.build_decoder": {
        "transformer_dec_config": LAYERS,
        "conv_dec_config": LAYERS,
    },
    "examples/speech_recognition/models/vggtransformer.py:VGGTransformerEncoderModel.build_model": {
        "vggblock_enc_config": LAYERS,
        "transformer_enc_config": LAYERS,
        "transformer_context": NUMBERS,
        "transformer_sampling": NUMBERS,
    },
    "examples/speech_recognition/models/w2l_conv_glu_enc.py:W2lConvGluEncoderModel.build_model": {
        "conv_enc_config": LAYERS
    },
    "examples/speech_text_joint_to_text/tasks/pair_denoising.py:"
    "PairedDenoisingTask.load_dataset_only": {"left_pad_source": FLAG, "left_pad_target": FLAG},
}


def _expected_of_options() -> dict[str, str]:
    expected: dict[str, str] = {}
    for options in EVALUATED.values():
        for name, kind in options.items():
            assert expected.setdefault(name, kind) == kind
    return expected


EXPECTED = _expected_of_options()


def check_options(state: Any, source: str) -> None:
    """Check the options in the sections ``args`` and ``cfg`` of a checkpoint, if it has them.

    Args:
        state: Content of the checkpoint.
        source: Path of the checkpoint, for messages.
    """
    if not isinstance(state, Mapping):
        return
    for section in ("args", "cfg"):
        check_values(state.get(section), section, source)
        for path, name, value in walk_values(state.get(section), section):
            if name in EXPECTED and isinstance(value, str) and value.strip():
                _check_literal(source, path, value, EXPECTED[name])


def check_values(options: Any, root: str, source: str) -> None:
    """Check the values of a checkpoint's options.

    Args:
        options: Section ``cfg`` or ``args`` of the checkpoint.
        root: Name of the section, ``"cfg"`` or ``"args"``.
        source: Path of the checkpoint, for messages.
    """
    import torch

    _check_number(options, root, source)
    for path, _, value in walk_values(options, root):
        if isinstance(value, (bytes, bytearray, np.ndarray, torch.Tensor)):
            raise UserError(
                f"{source}: {path} must be a plain value, but is a {type(value).__name__}."
            )
        if isinstance(value, str) and "${" in _REFERENCE.sub("", value, count=1):
            raise UserError(
                f"{source}: {path} must be a plain value, but is {shortened(value)} instead, "
                "which reads something outside of the checkpoint, or several values."
            )
        if isinstance(value, str) and _READING.match(path) and _is_endless(value):
            raise UserError(
                f"{source}: {path} must name a file, but {shortened(value)} is a device or a pipe."
            )


def _is_endless(path: str) -> bool:
    """Return True if a path is a device, a pipe or a socket, so that reading may never end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def walk_values(options: Any, root: str) -> Iterator[tuple[str, str, Any]]:
    """Yield (path, option name, value) of all values that are not containers.

    A container that occurs several times within the value of one option is read once.

    Args:
        options: Section of a checkpoint's options.
        root: Name of the section, with which the paths begin, as in ``cfg.model.dropout``.
    """
    # nodes of omegaconf are read as they are stored, because reading them would resolve references
    todo: list[tuple[str, str, Any]] = [(root, "", options)]
    seen = set()
    while todo:
        path, name, value = todo.pop()
        if not _holds(value):
            yield path, name, value
        elif (id(value), name) not in seen:
            seen.add((id(value), name))
            todo += reversed(list(_items(path, name, value)))


def _check_number(options: Any, root: str, source: str) -> None:
    """Raise UserError if options have too many values or levels, or a container contains itself.

    A container that occurs several times is counted each time. Messages name the checkpoint
    ``source`` and its section ``root``, ``"cfg"`` or ``"args"``.
    """
    # omegaconf builds a container as often as it occurs: 40 levels of containers that each contain
    # the next one twice would never end
    # number of values in a container; None while its content is being counted
    numbers: dict[int, Optional[int]] = {}
    todo = [options] if _holds(options) else []
    depth = 0
    while todo:
        value = todo[-1]
        items = [item for _, _, item in _items("", "", value)]
        if id(value) not in numbers:
            numbers[id(value)] = None
            depth += 1
            if depth > _DEEPEST:
                raise UserError(f"{source}: {root} is nested more than {_DEEPEST} deep.")
            if any(id(item) in numbers and numbers[id(item)] is None for item in items):
                raise UserError(f"{source}: {root} must be a tree of options, but holds itself.")
            todo += [item for item in items if _holds(item)]
            continue
        todo.pop()
        if numbers[id(value)] is None:
            depth -= 1
            number = 1 + sum(numbers.get(id(item)) or 1 for item in items)
            if number > _MOST_VALUES:
                raise UserError(
                    f"{source}: {root} must have {_MOST_VALUES:,} values at most, but has more."
                )
            numbers[id(value)] = number


def _holds(value: Any) -> bool:
    from omegaconf import Node

    return isinstance(value, (list, tuple, set, frozenset, Mapping, Namespace, Node))


def _items(path: str, name: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    from omegaconf import Node

    if isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"{path}[{i}]", name, item) for i, item in enumerate(value))
    elif isinstance(value, Mapping) and not isinstance(value, Node):
        yield from ((f"{path}.{key}", str(key), item) for key, item in value.items())
    # reading an attribute finds attributes before items of the same name, also in mappings
    if isinstance(value, (Node, Namespace, Mapping)):
        for key, item in getattr(value, "__dict__", {}).items():
            if key in ("_content", "_val") and isinstance(value, Node):
                yield path, name, item
            elif key != "_parent":
                yield f"{path}.{key}", str(key), item


def shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _check_literal(source: str, path: str, text: str, expected: str) -> None:
    try:
        if _IS_OF[expected](parse_literal(text, computes=False)):
            return
    except ValueError:
        pass
    raise UserError(
        f"{source}: {path} must be {expected}, but is {shortened(text)} instead. fairseq would "
        "evaluate it as Python."
    )


def _is_flag(value: Any) -> bool:
    return value is None or value in (True, False)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))


def _all(items: Any, is_item: Callable[[Any], bool]) -> bool:
    return isinstance(items, (list, tuple)) and all(is_item(item) for item in items)


def _is_layers(value: Any) -> bool:
    return _is_number(value) or _all(value, _is_layers)


_IS_OF: dict[str, Callable[[Any], bool]] = {
    FLAG: _is_flag,
    FLAGS: lambda value: _is_flag(value) or _all(value, _is_flag),
    NUMBERS: lambda value: _is_number(value) or _all(value, _is_number),
    LAYERS: _is_layers,
    DICTIONARY: lambda value: value is None or isinstance(value, dict),
    LITERALS: lambda value: value is None or isinstance(value, (list, tuple)),
}


def evaluate_literal(text: Any, *scopes: Optional[Mapping[str, Any]]) -> Any:
    """Return the value of a literal; replaces ``eval`` in fairseq's modules.

    Raises:
        TypeError: if ``text`` is no string, as for ``eval``.
    """
    if not isinstance(text, str):
        raise TypeError("eval() arg 1 must be a string")
    try:
        return parse_literal(text)
    except ValueError:
        raise UserError(
            "an option that fairseq evaluates must be a literal (numbers, strings, True, False, "
            f"None, and lists, tuples and dictionaries of them, of at most {LONGEST_TEXT} "
            f"characters), but is {shortened(text)} instead."
        ) from None
