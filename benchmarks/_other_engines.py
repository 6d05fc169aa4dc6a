"""Hugging Face's generator and CTranslate2 with the weights of our BART or T5, as peers.

Both are optional: ``pip install transformers ctranslate2``.
"""

import tempfile
from argparse import Namespace
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from fairseq_mm.conversion.t5 import _weight_names

HUGGING_FACE, CTRANSLATE2 = "Hugging Face", "CTranslate2"


def list_engines(weights_dtype: str) -> list[str]:
    """Return the names of the installed engines that have weights of a dtype on this machine."""
    if not find_spec("transformers"):
        return []
    engines = []
    if find_spec("ctranslate2"):
        import ctranslate2

        if weights_dtype in ctranslate2.get_supported_compute_types("cpu"):
            engines.append(CTRANSLATE2)
    if weights_dtype == "float32":
        engines.append(HUGGING_FACE)
    return engines


def writing_by(
    engine: str, model: Any, drawn: dict[str, Tensor], sizes: Namespace, weights_dtype: str
) -> Callable[[], list[list[int]]]:
    """Return a function that writes with the weights of ``model`` by an engine.

    It returns the tokens of each best text.
    """
    if engine == CTRANSLATE2:
        return writing_by_ctranslate2(model, drawn, sizes, weights_dtype)
    return _writing_by_hugging_face(model, drawn, sizes)


def _to_hugging_face(model: Any) -> Any:
    """Build Hugging Face's model with the weights of fairseq's BART or of ``t5``."""
    return _to_t5(model) if hasattr(model.decoder, "relative_bias") else _to_bart(model)


def _to_bart(model: Any) -> Any:
    from transformers import BartConfig, BartForConditionalGeneration

    first, embedding = model.encoder.layers[0], model.encoder.embed_tokens.weight
    config = BartConfig(
        vocab_size=len(embedding),
        d_model=embedding.size(1),
        encoder_layers=len(model.encoder.layers),
        decoder_layers=len(model.decoder.layers),
        encoder_attention_heads=first.self_attn.num_heads,
        decoder_attention_heads=first.self_attn.num_heads,
        encoder_ffn_dim=first.fc1.out_features,
        decoder_ffn_dim=model.decoder.layers[0].fc1.out_features,
        forced_eos_token_id=None,
    )
    other = BartForConditionalGeneration(config).eval()
    weights = {**model.state_dict(), "shared.weight": embedding}
    loaded = other.model.load_state_dict(weights, strict=False)
    assert not loaded.missing_keys
    # CTranslate2's converter reads these, which newer configs do not have.
    other.config.normalize_before = other.config.add_bias_logits = False
    other.config.normalize_embedding = True
    other.config.add_final_layer_norm = False
    return other


def _to_t5(model: Any) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    layer, embedding = model.encoder.layers[0], model.decoder.embedding.weight
    words, attention = model.decoder.dictionary, layer.self_attention
    config = T5Config(
        vocab_size=len(embedding),
        d_model=embedding.size(1),
        d_kv=attention.query_proj.out_features // attention.num_heads,
        d_ff=layer.feed_forward.inner_proj.out_features,
        num_layers=len(model.encoder.layers),
        num_decoder_layers=len(model.decoder.layers),
        num_heads=attention.num_heads,
        pad_token_id=words.pad(),
        eos_token_id=words.eos(),
        decoder_start_token_id=words.pad(),
    )
    other = T5ForConditionalGeneration(config).eval()
    options = {
        "encoder_layers": len(model.encoder.layers),
        "decoder_layers": len(model.decoder.layers),
        "feed_forward": "relu",
    }
    ours = model.state_dict()
    weights = {theirs: ours[name] for name, theirs in _weight_names(options)}
    loaded = other.load_state_dict({**weights, "shared.weight": embedding}, strict=False)
    shared = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}
    assert not set(loaded.missing_keys) - shared
    assert not loaded.unexpected_keys
    return other


def _writing_by_hugging_face(
    model: Any, drawn: dict[str, Tensor], sizes: Namespace
) -> Callable[[], list[list[int]]]:
    return writing_by_generate(_to_hugging_face(model), drawn, sizes)


def writing_by_generate(
    other: Any, drawn: dict[str, Tensor], sizes: Namespace, **options: Any
) -> Callable[[], list[list[int]]]:
    """Return a function that writes with ``generate`` of transformers.

    Args:
        other: Model of :func:`_to_hugging_face`, on the device of ``drawn``.
        drawn: Batch of ``video_summarization.draw``.
        sizes: Sizes with ``beam`` and ``target``.
        **options: Further options of ``generate``.
    """
    settings = {"num_beams": sizes.beam, "do_sample": False, **options}
    count = {"min_new_tokens": sizes.target, "max_new_tokens": sizes.target}
    mask = torch.ones_like(drawn["src_tokens"])

    def write() -> list[list[int]]:
        out = other.generate(drawn["src_tokens"], attention_mask=mask, **settings, **count)
        return out[:, 1:].tolist()  # without the start token

    return write


def writing_by_ctranslate2(
    model: Any,
    drawn: dict[str, Tensor],
    sizes: Namespace,
    weights_dtype: str,
    *,
    device: str = "cpu",
) -> Callable[[], list[list[int]]]:
    """Return a function that writes with ``translate_batch`` of CTranslate2."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    dictionary = model.decoder.dictionary
    words = dictionary.symbols

    class Tokenizer:
        """What the converter reads of a tokenizer."""

        bos_token, pad_token, eos_token, unk_token = "<s>", "<pad>", "</s>", "<unk>"

        def get_vocab(self) -> dict[str, int]:
            return {word: number for number, word in enumerate(words)}

        def convert_ids_to_tokens(self, number: int) -> str:
            return words[number]

    class Converter(TransformersConverter):
        def load_tokenizer(self, *args: Any, **kwargs: Any) -> Tokenizer:
            return Tokenizer()

    with tempfile.TemporaryDirectory() as folder:
        _to_hugging_face(model).save_pretrained(f"{folder}/source")
        Converter(f"{folder}/source").convert(f"{folder}/converted")
        translator = ctranslate2.Translator(
            f"{folder}/converted",
            device=device,
            intra_threads=torch.get_num_threads(),
            inter_threads=1,
            compute_type=weights_dtype,
        )
    transcripts = [[words[number] for number in row] for row in drawn["src_tokens"].tolist()]
    lengths = {"min_decoding_length": sizes.target, "max_decoding_length": sizes.target}

    def write() -> list[list[int]]:
        found = translator.translate_batch(
            transcripts, beam_size=sizes.beam, max_input_length=0, **lengths
        )
        best = [beams.hypotheses[0] for beams in found]
        assert all(len(text) == sizes.target for text in best)
        return [[dictionary.index(word) for word in text] for text in best]

    return write
