"""Converts Hugging Face's T5 (1.0, 1.1, FLAN-T5, mT5) to ``--arch t5``.

The conversion writes a checkpoint (``model.pt``), one dictionary for source and
target (``dict.txt``) and the subword tokenizer (``subwords.json``, ``sentencepiece.model``), which
the checkpoint contains as well.

The rows of T5's embedding are padding, ``</s>``, ``<unk>``, the sentencepiece tokens,
``<extra_id_99>`` to ``<extra_id_0>``, and unused rows that fill the vocabulary up to a multiple of
128. A dictionary of fairseq begins with ``<s>``, padding, ``</s>``, ``<unk>``. Symbol i of the
dictionary is therefore row i - 1 of T5, and ``<s>``, which T5 lacks, takes T5's last row, so that
no probability changes. If the last row is ``<extra_id_0>``, texts can no longer contain this token.
If it is an ordinary token, there is no row for ``<s>``, and the vocabulary is refused.
"""

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_mm.conversion.huggingface_folder import (
    ConvertedPretrained,
    pop_embeddings,
    read_options,
    read_weights,
)
from fairseq_mm.conversion.new_checkpoint import checkpoint_state, config_defaults, format_flags
from fairseq_mm.conversion.output_folder import output_folder
from fairseq_mm.data.input_files import read_json
from fairseq_mm.data.output_file import library_errors
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.errors import UserError
from fairseq_mm.extract.weights import check_tensors
from fairseq_mm.models._provenance import list_words
from fairseq_mm.models.t5 import BASE, LARGE, SMALL, T5Config, T5Model
from fairseq_mm.tasks.video_summarization import VideoSummarizationTask

PAD, END, UNKNOWN = 0, 1, 2
_MAX_EXTRA_IDS = 100  # the sentinels of T5's pretraining; later rows only fill the vocabulary


def to_fairseq_rows(weight: Tensor) -> Tensor:
    """Reorder the rows [V, ...] of T5's embedding or output layer for fairseq's dictionary."""
    return torch.roll(weight, 1, dims=0)


def t5_dictionary(pieces: bytes, num_rows: int, path: str, notes: list[str]) -> Dictionary:
    """Build fairseq's dictionary for a T5 with ``num_rows`` rows of embeddings from its
    sentencepiece model ``pieces``.

    Tokens keep their names, so that ``--bpe sentencepiece`` finds them; repeated tokens, tokens
    with white space and unused rows N are named ``<row_N>``.
    """
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    special = (processor.pad_id(), processor.eos_id(), processor.unk_id())
    if special != (PAD, END, UNKNOWN):
        raise UserError(
            f"{path}: padding, </s> and <unk> must be pieces {PAD}, {END} and {UNKNOWN}, as T5's "
            f"are, but are {special[0]}, {special[1]} and {special[2]}."
        )
    num_pieces = processor.get_piece_size()
    if num_rows <= num_pieces:
        raise UserError(
            f"{path}: has {num_pieces} pieces, but the embedding only {num_rows} rows: one more "
            "than pieces is needed, for fairseq's <s>. With transformers, "
            f"model.resize_token_embeddings({num_pieces + 1}) makes it."
        )
    num_extra = min(_MAX_EXTRA_IDS, num_rows - num_pieces)
    if num_pieces + num_extra == num_rows:
        notes.append(
            f"The vocabulary has no unused row: the last one, {num_rows - 1} (<extra_id_0>), is "
            "fairseq's <s>, and no text can name it any more."
        )
    names = [processor.id_to_piece(row) for row in range(num_pieces)]
    # T5Tokenizer numbers these rows downwards: <extra_id_0> is the last one
    names += [f"<extra_id_{number}>" for number in reversed(range(num_extra))]
    dictionary = Dictionary()
    # fairseq's four special symbols are there already; the last row is fairseq's <s>
    for row in range(len(special), num_rows - 1):
        name = names[row] if row < len(names) else ""
        # fairseq splits lines at white space, and add_symbol counts a second name as the first
        if name.split() != [name] or name in dictionary:
            name = f"<row_{row}>"
        dictionary.add_symbol(name)
    return dictionary


_PIECES_FILE = "spiece.model"
_FIELDS = {
    "model_dim": ("d_model", 512, int),
    "attention_heads": ("num_heads", 8, int),
    "head_dim": ("d_kv", 64, int),
    "ffn_dim": ("d_ff", 2048, int),
    "encoder_layers": ("num_layers", 6, int),
    "decoder_layers": ("num_decoder_layers", "encoder_layers", int),
    "relative_buckets": ("relative_attention_num_buckets", 32, int),
    "max_distance": ("relative_attention_max_distance", 128, int),
    "dropout": ("dropout_rate", 0.1, float),
    "norm_epsilon": ("layer_norm_epsilon", 1e-6, float),
    "feed_forward": ("feed_forward_proj", "relu", {"relu": "relu", "gated-gelu": "gated_gelu"}),
}
# T5 begins texts with padding, so its row is part of the model
_ROWS = {
    key: (key, row, (row,))
    for key, row in (("pad_token_id", PAD), ("eos_token_id", END), ("decoder_start_token_id", PAD))
}
_EMBEDDINGS = ("encoder.embedding.weight", "decoder.embedding.weight")
_THEIR_EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_OUTPUT, _THEIR_OUTPUT = "decoder.output_proj.weight", "lm_head.weight"
# in old checkpoints; no T5 computes with it, since attention to the source has no positions
_UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
_PROJECTIONS = {"query_proj": "q", "key_proj": "k", "value_proj": "v", "output_proj": "o"}


def convert_t5(folder: str, output: str) -> ConvertedPretrained:
    """Convert Hugging Face's T5 (``config.json``, weights, ``spiece.model``) to ``--arch t5``;
    return a summary."""
    path = os.path.join(folder, "config.json")
    config = read_json(path)
    read_options(config, path, _ROWS)
    options = read_options(config, path, _FIELDS)
    notes: list[str] = []
    weights = read_weights(folder)
    embedding = pop_embeddings(weights, _THEIR_EMBEDDINGS, folder)
    own_output = _pop_own_output(config, weights, embedding, notes)
    options["untied_output"] = own_output is not None
    pieces_path = os.path.join(folder, _PIECES_FILE)
    subwords = Subwords.from_paths("sentencepiece", {"sentencepiece.model": pieces_path})
    content = subwords.files["sentencepiece.model"]
    dictionary = t5_dictionary(content, len(embedding), pieces_path, notes)
    task = VideoSummarizationTask.from_provenance(
        list_words(dictionary), {}, 0, subwords=subwords.to_state()
    )
    defaults = config_defaults(T5Config)
    cfg: Any = Namespace(**{**defaults, **options})
    model = T5Model.build_model(cfg, task)
    # by our names; other tensors keep theirs, so that the check lists them
    names = {theirs: ours for ours, theirs in _weight_names(options)}
    weights.pop(_UNUSED, None)
    renamed = {names.get(name, name): x.float() for name, x in weights.items()}
    renamed.update(dict.fromkeys(_EMBEDDINGS, to_fairseq_rows(embedding)))
    if own_output is not None:
        renamed[_OUTPUT] = to_fairseq_rows(own_output)
    state_dict = model.state_dict()
    expected = {x: y for x, y in state_dict.items() if not x.endswith("_extra_state")}
    check_tensors(renamed, expected, folder)
    arch = "t5"
    for name, sizes in (("t5_small", SMALL), ("t5_base", BASE), ("t5_large", LARGE)):
        if sizes.items() <= options.items():
            arch = name
            defaults.update(sizes)
    changed = {name: x for name, x in options.items() if x != defaults[name]}
    flags = [".", "--task", "video_summarization", "--arch", arch, *format_flags(changed)]
    # the untrained model's state dict adds the record of dictionary and subwords to the weights
    state = checkpoint_state(flags, {**state_dict, **renamed})
    # how the task read texts in training is read from here when a model is loaded for generation
    state["task_state"] = task.state_dict()
    with output_folder(output) as partial:
        subwords.save(partial)
        dictionary.save(os.path.join(partial, "dict.txt"))
        with library_errors():
            torch.save(state, os.path.join(partial, "model.pt"))
    # not of state_dict, in which the shared embedding has several names
    parameters = sum(x.numel() for x in model.parameters())
    return ConvertedPretrained(arch, changed, parameters, len(dictionary), notes)


def _pop_own_output(
    config: Mapping[str, Any], weights: dict[str, Tensor], embedding: Tensor, notes: list[str]
) -> Any:
    """Remove the output layer [V, D] from ``weights``, and return it, with any scale of the logits
    included; None if it is scaled and equal to the embedding."""
    is_scaled = config.get("scale_decoder_outputs")
    if is_scaled is None:  # transformers before 5 scale if, and only if, the embeddings are tied
        is_scaled = config.get("tie_word_embeddings") is not False
    output = weights.pop(_THEIR_OUTPUT, embedding).float()
    is_shared = output.shape == embedding.shape and torch.equal(output, embedding)
    if is_shared and is_scaled:
        return None
    if is_scaled:
        notes.append("The output layer is scaled, but not shared: the scale is in its weights now.")
        return output * embedding.size(1) ** -0.5
    if is_shared:
        notes.append("The output layer is shared, but not scaled: it has a copy of the embedding.")
    return output


def _weight_names(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name in ``--arch t5`` and Hugging Face's name of each tensor."""
    for stack, attentions in (
        ("encoder", {"self_attention": "SelfAttention"}),
        ("decoder", {"self_attention": "SelfAttention", "source_attention": "EncDecAttention"}),
    ):
        # Hugging Face stores the relative positions, which all layers share, in the first one
        first = f"{stack}.block.0.layer.0.SelfAttention"
        yield f"{stack}.relative_bias.weight", f"{first}.relative_attention_bias.weight"
        yield f"{stack}.final_norm.weight", f"{stack}.final_layer_norm.weight"
        for i in range(options[f"{stack}_layers"]):
            layer, block = f"{stack}.layers.{i}", f"{stack}.block.{i}.layer"
            for place, (ours, theirs) in enumerate(attentions.items()):
                yield f"{layer}.{ours}_norm.weight", f"{block}.{place}.layer_norm.weight"
                for name, letter in _PROJECTIONS.items():
                    yield (
                        f"{layer}.{ours}.{name}.weight",
                        f"{block}.{place}.{theirs}.{letter}.weight",
                    )
            ours, theirs = f"{layer}.feed_forward", f"{block}.{len(attentions)}"
            yield f"{ours}_norm.weight", f"{theirs}.layer_norm.weight"
            theirs = f"{theirs}.DenseReluDense"  # also where the activation is not ReLU
            yield f"{ours}.output_proj.weight", f"{theirs}.wo.weight"
            if options["feed_forward"] == "gated_gelu":
                yield f"{ours}.gate_proj.weight", f"{theirs}.wi_0.weight"
                yield f"{ours}.inner_proj.weight", f"{theirs}.wi_1.weight"
            else:
                yield f"{ours}.inner_proj.weight", f"{theirs}.wi.weight"
