"""Names and sizes of T5 in this package and in Hugging Face's."""

from collections.abc import Iterator, Mapping
from typing import Any

# option -> key of config.json and its default there
SIZES = {
    "model_dim": ("d_model", 512),
    "attention_heads": ("num_heads", 8),
    "head_dim": ("d_kv", 64),
    "ffn_dim": ("d_ff", 2048),
    "encoder_layers": ("num_layers", 6),
    "decoder_layers": ("num_decoder_layers", None),  # as many as of the encoder
    "relative_buckets": ("relative_attention_num_buckets", 32),
    "max_distance": ("relative_attention_max_distance", 128),
}
RATES = {
    "dropout": ("dropout_rate", 0.1),
    "norm_epsilon": ("layer_norm_epsilon", 1e-6),
}
FEED_FORWARD = {"relu": "relu", "gated_gelu": "gated-gelu"}
EMBEDDINGS = ("encoder.embedding.weight", "decoder.embedding.weight")
THEIR_EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
OUTPUT, THEIR_OUTPUT = "decoder.output_proj.weight", "lm_head.weight"
# in old checkpoints; no T5 computes with it
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"

_PROJECTIONS = {"query_proj": "q", "key_proj": "k", "value_proj": "v", "output_proj": "o"}


def weight_names(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield our name and Hugging Face's name of each tensor, except embedding and output.

    Args:
        options: Options of ``--arch t5``.
    """
    for stack, attentions in (
        ("encoder", {"self_attention": "SelfAttention"}),
        ("decoder", {"self_attention": "SelfAttention", "source_attention": "EncDecAttention"}),
    ):
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
            theirs = f"{theirs}.DenseReluDense"
            yield f"{ours}.output_proj.weight", f"{theirs}.wo.weight"
            if options["feed_forward"] == "gated_gelu":
                yield f"{ours}.gate_proj.weight", f"{theirs}.wi_0.weight"
                yield f"{ours}.inner_proj.weight", f"{theirs}.wi_1.weight"
            else:
                yield f"{ours}.inner_proj.weight", f"{theirs}.wi.weight"
