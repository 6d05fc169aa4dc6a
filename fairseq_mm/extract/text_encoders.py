"""Text encoders of Hugging Face's transformers, for the metrics BERTScore and MAUVE.

The package's extra ``hf`` installs transformers. A model is a folder that ``save_pretrained`` wrote
with model and tokenizer, or the name of a model on the Hugging Face hub, ``OWNER/NAME[@REVISION]``.
No code of a folder or of the hub is run.
"""

import contextlib
import importlib
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import torch

from fairseq_mm.compat import float32_by_default
from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError, import_extra
from fairseq_mm.extract.extractor import find_device
from fairseq_mm.extract.hf_backbones import (
    CONFIG_FILE,
    WEIGHTS_FILES,
    quiet_transformers,
    split_hub_name,
)
from fairseq_mm.extract.library_networks import (
    compute_weights_digest,
    describe_hub_error,
    describe_library,
)
from fairseq_mm.extract.weights import check_finite, name_some

# kind of model -> table of transformers with the types of such models
KINDS = {
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
}
_KIND_NAMES = {
    "masked": "a masked language model, such as BERT or RoBERTa",
    "causal": "a language model, such as GPT-2",
}
_JSON_FILES = (CONFIG_FILE, "tokenizer_config.json", "tokenizer.json")
# tokenizers that split the first word of a text in another way than words after a space
_BYTE_LEVEL = "Roberta"
_TOKENS_PER_BATCH = 2048
_MAX_TEXTS_PER_BATCH = 256
# what a model without positions of its own, such as DeBERTa-v2, was trained on
_DEFAULT_MAX_TOKENS = 512
# (type of the model, number of layers) -> layer that correlates best with human judgments,
# according to table 8 of Zhang et al. 2020 and the package bert-score
_BEST_LAYERS = {
    ("bert", 12): 9,
    ("bert", 24): 18,
    ("roberta", 12): 10,
    ("roberta", 24): 17,
    ("distilbert", 6): 5,
    ("xlm-roberta", 12): 9,
    ("xlm-roberta", 24): 17,
}


class EncodedText(NamedTuple):
    """Hidden states of the tokens of a text.

    Attributes:
        hidden: ``[t, D]`` float32.
        tokens: ``[t]`` token indices, special symbols included.
    """

    hidden: np.ndarray
    tokens: np.ndarray


class TextEncoder:
    """Model of transformers that returns the hidden states of the tokens of texts.

    Args:
        model: Folder, or name of a model on the hub.
        option: Option of the command line that names the model, for messages.
        kind: Kind of model that is needed, one of :data:`KINDS`.
        layer: Layer whose hidden states are returned, from 1; 0 for the layer that agrees best
            with human judgments (known for some models); None for the last layer. Later layers
            are not built.
        device: Device of the model; ``auto`` for a GPU if there is one.
        max_tokens: Maximum number of tokens of a text (default: the number that the model reads).

    Attributes:
        layer: Layer whose hidden states are returned.
        adds_space: True if a space is put before every text. bert-score does so for RoBERTa, whose
            tokenizer would otherwise split the first word differently from later words.
        identity: Name of the model, SHA-256 of its weights up to the layer, and version of the
            library.
    """

    def __init__(
        self,
        model: str,
        *,
        option: str,
        kind: str,
        layer: Optional[int] = None,
        device: str = "auto",
        max_tokens: Optional[int] = None,
    ) -> None:
        self._where = f"{option} {model}"
        transformers: Any = import_extra("transformers", extra="hf", purpose=self._where)
        self.device = find_device(device)
        path, revision = self._find_files(model)
        with self._errors(path), quiet_transformers(transformers):
            place = {"revision": revision, "trust_remote_code": False}
            config = transformers.AutoConfig.from_pretrained(path, **place)
            commit = getattr(config, "_commit_hash", None)
            if not os.path.isdir(path):
                place["revision"] = commit or revision
            self._check_kind(config, kind)
            self.layer = self._choose_layer(config, layer)
            config.num_hidden_layers = self.layer
            config.use_cache = False  # of keys and values, which only generation reads
            network, info = transformers.AutoModel.from_pretrained(
                path, config=config, output_loading_info=True, **place
            )
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path, **place)
        self._network: Any = network.eval().float()
        self._vocabulary_size = network.get_input_embeddings().num_embeddings
        needed = self._check_weights(info["missing_keys"])
        digest = compute_weights_digest(self._network, needed)
        self._network.to(self.device)
        self.max_tokens = min(self._count_positions(config), max_tokens or 1 << 30)
        is_byte_level = type(self._tokenizer).__name__.startswith(_BYTE_LEVEL)
        self.adds_space = kind == "masked" and is_byte_level
        name = os.path.basename(os.path.abspath(path)) if os.path.isdir(path) else path
        self.identity = {
            "model": f"{name}@{commit}" if commit else name,
            "digest": digest,
            "library": describe_library("transformers"),
        }

    def _find_files(self, model: str) -> tuple[str, str]:
        """Return the folder or the hub's name of a model, and its revision."""
        if os.path.isdir(model):
            if not os.path.isfile(os.path.join(model, CONFIG_FILE)):
                raise UserError(
                    f"{self._where}: the folder has no {CONFIG_FILE}, so it is no model of "
                    "transformers (written by save_pretrained)."
                )
            files = os.listdir(model)
            if not any(name in WEIGHTS_FILES or name.endswith(".index.json") for name in files):
                raise UserError(
                    f"{self._where}: the weights are missing; the folder must have one of "
                    f"{', '.join(WEIGHTS_FILES)}."
                )
            return model, "main"
        name, revision = split_hub_name(model, where=self._where)
        return name, revision or "main"

    @contextlib.contextmanager
    def _errors(self, model: str) -> Iterator[None]:
        """Convert exceptions of transformers inside the context to errors of one line."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # the library checks a config only where it reads a setting
            remedy = ""
            if os.path.isdir(model):
                self._check_json_files(model)
            else:
                remedy = " (Without network: save model and tokenizer on another machine with "
                remedy += "save_pretrained, and give the folder.)"
            reason = describe_hub_error(error)
            if "ignore_mismatched_sizes" in reason:
                reason = f"the weights have other sizes than {CONFIG_FILE} says"
            raise UserError(f"{self._where}: cannot be loaded: {reason}.{remedy}") from None

    def _check_json_files(self, folder: str) -> None:
        """Raise UserError if a JSON file of the model or the tokenizer is damaged."""
        for name in _JSON_FILES:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not isinstance(read_json(path), dict):
                raise UserError(f"{path}: must be a JSON object.")

    def _check_kind(self, config: Any, kind: str) -> None:
        tables = importlib.import_module("transformers.models.auto.modeling_auto")
        kinds = {x for x, table in KINDS.items() if config.model_type in getattr(tables, table)}
        is_decoder = getattr(config, "is_decoder", False)
        # BERT and similar models are in both tables; as a decoder, a token does not see later ones
        if len(kinds) > 1:
            kinds = {"causal"} if is_decoder else {"masked"}
        if kind not in kinds or getattr(config, "is_encoder_decoder", False):
            decoder = " with is_decoder" if is_decoder else ""
            raise UserError(
                f"{self._where}: must be {_KIND_NAMES[kind]}, but is of the type "
                f"{config.model_type}{decoder}."
            )

    def _choose_layer(self, config: Any, layer: Optional[int]) -> int:
        count = config.num_hidden_layers
        if count < 1:
            raise UserError(f"{self._where}: num_hidden_layers must be 1 or more, but is {count}.")
        if layer is None:
            return count
        if layer == 0:
            return _BEST_LAYERS.get((config.model_type, count), count)
        if not 1 <= layer <= count:
            raise UserError(f"{self._where}: has the layers 1 to {count}, but not {layer}.")
        return layer

    def _check_weights(self, missing: Collection[str]) -> list[str]:
        """Return the names of the tensors that the hidden states depend on.

        Raise UserError if such a tensor is among ``missing``, because its values would be random.
        """
        # hidden states do not depend on the pooler
        needed = [name for name in self._network.state_dict() if "pooler." not in name]
        lacking = sorted(name for name in missing if name in needed)
        if lacking:
            raise UserError(
                f"{self._where}: the weights do not fit the config: they lack {name_some(lacking)}."
            )
        check_finite(self._network, needed=needed, origin=self._where)
        return needed

    def _count_positions(self, config: Any) -> int:
        positions = getattr(config, "max_position_embeddings", None) or _DEFAULT_MAX_TOKENS
        # RoBERTa counts positions from the index after padding
        padding = getattr(getattr(self._network, "embeddings", None), "padding_idx", None)
        positions -= 0 if padding is None else padding + 1
        # a tokenizer without a limit has a huge number
        limit = self._tokenizer.model_max_length
        if not isinstance(limit, (int, float)) or limit < 1:
            raise UserError(
                f"{self._where}: the tokenizer's model_max_length must be 1 or more, but is "
                f"{repr(limit)[:80]}."
            )
        return min(positions, int(limit))

    @property
    def edge_tokens(self) -> list[int]:
        """Indices of the start and the end symbol of texts; empty if the tokenizer has neither."""
        edges = (self._tokenizer.cls_token_id, self._tokenizer.sep_token_id)
        return [token for token in edges if token is not None]

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        space = " " if self.adds_space else ""
        prepared = [space + text.strip() if text.strip() else "" for text in texts]
        if not prepared:
            return []
        encoded = self._tokenizer(prepared, truncation=True, max_length=self.max_tokens)
        tokens: list[list[int]] = encoded["input_ids"]
        different = {index for indices in tokens for index in indices}
        # transformers makes a tokenizer without words if its files are missing
        if any(prepared) and different.issubset(self._tokenizer.all_special_ids):
            raise UserError(
                f"{self._where}: the tokenizer finds no word in the texts, only special symbols. "
                "Are files of the tokenizer missing, such as tokenizer.json?"
            )
        largest = max(different, default=0)
        if largest >= self._vocabulary_size:
            raise UserError(
                f"{self._where}: the tokenizer does not fit the model: it has the token {largest}, "
                f"but the model has {self._vocabulary_size} tokens."
            )
        return tokens

    @float32_by_default
    def encode(self, texts: Sequence[str]) -> Iterator[tuple[int, EncodedText]]:
        """Yield the position of each text and its hidden states, short texts first.

        A text without tokens is left out.
        """
        tokens = self._tokenize(texts)
        order = sorted((i for i in range(len(texts)) if tokens[i]), key=lambda i: len(tokens[i]))
        padding = self._tokenizer.pad_token_id or 0
        if padding >= self._vocabulary_size:  # if the user has extended the tokenizer
            padding = 0
        while order:
            # sorted by length: the last text of a batch decides how many texts fit
            size = max(1, _TOKENS_PER_BATCH // len(tokens[order[0]]))
            batch = order[: min(size, _MAX_TEXTS_PER_BATCH)]
            while len(batch) > 1 and len(batch) * len(tokens[batch[-1]]) > _TOKENS_PER_BATCH:
                batch.pop()
            del order[: len(batch)]
            length = len(tokens[batch[-1]])
            ids = torch.full((len(batch), length), padding)
            mask = torch.zeros(len(batch), length, dtype=torch.long)
            for row, i in enumerate(batch):
                ids[row, : len(tokens[i])] = torch.tensor(tokens[i])
                mask[row, : len(tokens[i])] = 1
            with torch.inference_mode():
                output = self._network(
                    input_ids=ids.to(self.device), attention_mask=mask.to(self.device)
                )
            hidden = output.last_hidden_state.float().cpu().numpy()  # [B, t, D]
            for row, i in enumerate(batch):
                count = len(tokens[i])
                # a copy: a view would keep the batch with its padding in memory
                yield i, EncodedText(hidden[row, :count].copy(), np.array(tokens[i]))
