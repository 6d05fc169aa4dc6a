"""Transtory-XL: segment recurrence over sentences and images (``--arch transtory_xl``).

Li, Liu, Mao, Wang. Transtory-XL: Tell Stories from Image Streams. 2020, section 3.5.
Dai, Yang, Yang, Carbonell, Le, Salakhutdinov. Transformer-XL. ACL 2019.

Each sentence is a segment. Each layer has a memory of l_M slots, which hold states of earlier
words. Let m be the memory to which the words of sentence t - 1 attended, h the states of these
words (inputs of the layer), l_m and l_h the lengths of m and h, and f_t the projected,
batch-normalised features of image t:

    m' = [m; h][max(0, l_m + l_h - l_M) : l_m + l_h]      (eq. 9 to 11)
    memory of sentence t = W_fuse [m'; f_t] + b_fuse      (eq. 12), for each slot of m'

A transformer with relative positions reads sentence t and attends to its memory. The first
sentence's m' is zero, so its memory has l_M slots W_fuse [0; f_1] + b_fuse. Segments are padded to
a fixed length (section 3.5.3), and padding is masked in attention and memory.

In this implementation sentences are not padded, because masked positions need not be computed. The
distances between words and slots are the same as with padding. A decoding step attends to a memory
of fixed size and to the current sentence. When a row of the batch generates a separator, the memory
of this row is renewed.

Differs from the paper:
- The start token of sentences 2 to 5 is the separator.
- A missing image adds nothing to the memory: its f_t is zero.
- A sentence longer than the padding length is not truncated, and takes as many slots of the memory
  as it has tokens.

With ``--compat released``:
- Padding is a token with an embedding of its own. It is not masked, so words attend to it, and it
  enters the memory.
- Segments have 49 tokens, the memory 50 slots, and all words see the same number of states
  (``same_length`` of Transformer-XL).
- At each decoding step, the whole beginning of the sentence is read again and added to the memory.
  After some ten words, nothing of the image is left in the memory. This never happens in training.
"""

from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.models._bases import BatchFirstEncoder, FeatureDecoder
from fairseq_mm.models._image_sequence import ImageVectors, StoryModel, encoder_output
from fairseq_mm.models._presets import register_presets
from fairseq_mm.modules.attention import merge_heads, split_heads
from fairseq_mm.modules.decoding_caches import SentenceCache, select_rows
from fairseq_mm.modules.positions import next_positions, sentence_positions
from fairseq_mm.modules.relative_attention import RelativeAttention, SegmentMemory, remember
from fairseq_mm.modules.transformer_layer import FeedForward

STATE = "transtory_xl"
Compat: Any = ChoiceEnum(("none", "released"))
PAPER_SEGMENT, RELEASED_SEGMENT = 50, 49


@dataclass
class TranstoryXLConfig(FairseqDataclass):
    """Options of Transtory-XL, after the code of Li et al. 2020; two layers as in section 4.3."""

    picture_dim: int = option(1024, "Dimension of an image's projected features.")
    embedding_dim: int = option(256, "Dimension of token embeddings.")
    model_dim: int = option(1024, "Dimension of the transformer and of its memory.", multiple=2)
    decoder_layers: int = option(2, "Number of decoder layers.")
    decoder_attention_heads: int = option(4, "Number of attention heads of the decoder.")
    head_dim: int = option(64, "Dimension of each attention head.")
    decoder_ffn_dim: int = option(4096, "Dimension of the decoder's feed-forward layers.")
    dropout: float = option(0.1, "Dropout probability.")
    memory_length: int = option(50, "Number of slots of the memory.")
    segment_length: int = option(
        0,
        f"Length in tokens to which a sentence is padded, its start token included (0: "
        f"{PAPER_SEGMENT}, or {RELEASED_SEGMENT} with --compat released).",
        least=0,
    )
    clamp_length: int = option(
        1000, "Largest distance between tokens; larger distances are treated as this distance."
    )
    detach_memory: bool = option(False, "Let no gradients flow from a sentence to earlier ones.")
    compat: Compat = option(
        "none", "Attend to padding, and decode as the code of Li et al. 2020 does (released)."
    )


class TranstoryXLEncoder(BatchFirstEncoder):
    """Encoder that computes the vector of each image independently of the other images."""

    def __init__(self, images: ImageVectors) -> None:
        super().__init__()
        self.pictures = images

    def forward(self, features: Tensor, padding_mask: Tensor) -> dict[str, list[Tensor]]:
        """Encode features [B, 5 R, D] of five images, as :meth:`GlocalEncoder.forward` does.

        The vectors of missing images are zero.
        """
        vectors, image_padding_mask = self.pictures(features, padding_mask)
        return {"vectors": [vectors], "image_padding_mask": [image_padding_mask]}


class TranstoryXLLayer(nn.Module):
    """Post-norm transformer layer of attention with relative positions and feed-forward network."""

    def __init__(self, cfg: TranstoryXLConfig) -> None:
        super().__init__()
        self.attention = RelativeAttention(
            cfg.model_dim,
            cfg.decoder_attention_heads,
            cfg.head_dim,
            clamp_length=cfg.clamp_length,
            dropout=cfg.dropout,
        )
        self.attention_norm = nn.LayerNorm(cfg.model_dim)
        self.feed_forward = FeedForward(cfg.model_dim, cfg.decoder_ffn_dim, cfg.dropout)
        self.feed_forward_norm = nn.LayerNorm(cfg.model_dim)
        self.dropout = nn.Dropout(cfg.dropout)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Compute the layer's output from its input x [..., D] and the attended values [..., heads
        * head_dim].
        """
        x = self.attention_norm(x + self.dropout(self.attention.out_proj(attended)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class TranstoryXLDecoder(FeatureDecoder):
    """Decoder whose words attend to their own sentence and to a memory of earlier sentences.

    The memory holds hidden states of earlier words, fused with the image of the current sentence.
    """

    def __init__(self, dictionary: Any, separator: int, cfg: TranstoryXLConfig) -> None:
        super().__init__(dictionary)
        self.separator = separator
        self.is_released = str(cfg.compat) == "released"
        self.memory_length = cfg.memory_length
        self.segment_length = cfg.segment_length or (
            RELEASED_SEGMENT if self.is_released else PAPER_SEGMENT
        )
        self.detach_memory = cfg.detach_memory
        # the released code's padding is token 0, whose embedding is trained as any other
        padding_idx = None if self.is_released else dictionary.pad()
        self.embedding = nn.Embedding(len(dictionary), cfg.embedding_dim, padding_idx)
        self.embedding_proj = nn.Linear(cfg.embedding_dim, cfg.model_dim, bias=False)
        # W_fuse of equation 12 in two parts, so that the part of the image is computed once for all
        # slots.
        self.memory_fusion = nn.Linear(cfg.model_dim, cfg.model_dim)
        self.picture_fusion = nn.Linear(cfg.picture_dim, cfg.model_dim, bias=False)
        self.layers: Any = nn.ModuleList(TranstoryXLLayer(cfg) for _ in range(cfg.decoder_layers))
        self.output_proj = nn.Linear(cfg.model_dim, len(dictionary))
        self.dropout = nn.Dropout(cfg.dropout)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                # Hugging Face's Transformer-XL, which the released code uses, initialises so.
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if padding_idx is not None:
            with torch.no_grad():
                self.embedding.weight[padding_idx].zero_()

    def embed(self, tokens: Tensor) -> Tensor:
        width = self.embedding_proj.out_features
        return self.dropout(self.embedding_proj(self.embedding(tokens)) * width**0.5)

    def first_memory(self, image: Tensor, device: Any) -> SegmentMemory:
        """Build the memory for the first sentence of each story from its image vectors [B, F]."""
        # The memory of the first sentence is zero, so equation 12 leaves image and bias: equal
        # slots, stored once.
        fused = self.picture_fusion(image) + self.memory_fusion.bias
        ages = torch.arange(self.memory_length, 0, -1, device=device)
        valid_mask = torch.ones(len(image), len(ages), dtype=torch.bool, device=device)
        return SegmentMemory([fused.unsqueeze(1)] * len(self.layers), ages, valid_mask)

    def fuse(self, memory: SegmentMemory, image: Tensor) -> SegmentMemory:
        """Fuse a memory with the image vectors [B, F] of the next sentence (Li et al. 2020,
        equation 12).
        """
        from_image = self.picture_fusion(image).unsqueeze(1)
        contents = [self.memory_fusion(states) + from_image for states in memory.contents]
        return memory._replace(contents=contents)

    def _remember(
        self, memory: SegmentMemory, hidden: list[Tensor], lengths: Tensor, segment_length: int
    ) -> SegmentMemory:
        renewed = remember(
            memory, hidden, lengths, segment_length=segment_length, memory_length=self.memory_length
        )
        if self.detach_memory:
            renewed = renewed._replace(contents=[x.detach() for x in renewed.contents])
        return renewed

    def _visibility(self, distances: Tensor, valid_mask: Tensor) -> Tensor:
        """Return a mask [B, L, K], True where one of L queries may attend to one of K keys.

        ``distances`` [B or 1, L, K] say how many tokens each key precedes each query, and
        ``valid_mask`` [B, K] is False at padding.
        """
        attention_mask = (distances >= 0) & valid_mask.unsqueeze(1)
        if self.is_released:
            # same_length of Transformer-XL: every word sees equally many states.
            attention_mask = attention_mask & (distances < self.memory_length)
        return attention_mask

    def read_segment(
        self, x: Tensor, lengths: Tensor, memory: SegmentMemory
    ) -> tuple[Tensor, list[Tensor]]:
        """Run all layers on one sentence per row.

        Args:
            x: [B, L, D] embedded words of sentences of up to L words.
            lengths: [B] number of words without padding, on the same device as ``ages`` and
                ``valid_mask`` of the memory. If this is the CPU, the method never waits for the GPU
                of ``x``.
            memory: Memory that has been fused with the sentence's image.

        Returns:
            Output [B, L, D] of the last layer, and a list of the inputs [B, L, D] of the layers;
                both have arbitrary numbers at padding.
        """
        shape = len(x), x.size(1)
        places = torch.arange(x.size(1), device=lengths.device)
        valid_mask = places < lengths.unsqueeze(1)
        # Padding is removed for the layers that compute each position by itself. On a GPU, removing
        # it would take longer than computing it.
        real = None if x.is_cuda else valid_mask.flatten().nonzero().squeeze(1)
        x = _packed(x, real)
        distances = torch.cat(
            [places.unsqueeze(1) + memory.ages, places.unsqueeze(1) - places], dim=1
        ).unsqueeze(0)
        attention_mask = self._visibility(
            distances, torch.cat([memory.valid_mask, valid_mask], dim=1)
        )
        # Queries of padding may attend to everything, so that no row of a softmax is empty.
        attention_mask = attention_mask | ~valid_mask.unsqueeze(2)
        count = int(distances.max()) + 1
        # Clamped because keys after a query have negative distances.
        attention_mask, distances = _moved(attention_mask, x), _moved(distances.clamp(min=0), x)
        inputs = []
        for layer, states in zip(self.layers, memory.contents):
            inputs.append(_padded(x, real, shape))
            attention = layer.attention
            queries = split_heads(
                _padded(attention.query_proj(x), real, shape), attention.num_heads
            )
            width = attention.num_heads * attention.head_dim
            keys, values = _padded(attention.key_value_proj(x), real, shape).split(width, dim=-1)
            old_keys, old_values = attention.keys_and_values(states)
            size = (-1, -1, len(memory.ages), -1)
            keys = torch.cat([old_keys.expand(size), split_heads(keys, attention.num_heads)], dim=2)
            values = torch.cat(
                [old_values.expand(size), split_heads(values, attention.num_heads)], dim=2
            )
            weights = attention.weights(
                queries, keys, attention.distance_keys(count), distances, attention_mask
            )
            attended = merge_heads(torch.matmul(weights, values))
            x = layer.finish(x, _packed(attended, real))
        return _padded(self.dropout(x), real, shape), inputs

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[dict[str, list[Tensor]]],
        incremental_state: Optional[dict] = None,
    ) -> tuple[Tensor, None]:
        """Compute features [B, T, D], zero at padding, or [B, 1, D] when decoding incrementally,
        and None.
        """
        images, _ = encoder_output(encoder_out)
        if incremental_state is not None:
            if self.is_released:
                return self._released_step(prev_output_tokens, images, incremental_state), None
            return self._step(prev_output_tokens[:, -1], images, incremental_state), None
        # The layout of the sentences is computed on the CPU, so that the GPU is waited for once.
        tokens = prev_output_tokens.cpu()
        sentences, positions = sentence_positions(tokens, self.separator)
        is_word = tokens.ne(self.dictionary.pad())
        embedded = self.embed(prev_output_tokens)
        memory = self.first_memory(images[:, 0], tokens.device)
        reads: list[Tensor] = []
        num_read = [0]  # before each sentence, in positions with padding
        for k in range(int(sentences.max()) + 1):
            lengths = ((sentences == k) & is_word).sum(dim=1)
            L = int(lengths.max()) if len(lengths) else 0
            if L == 0:
                break
            if self.is_released:
                L = max(L, self.segment_length)
            starts = (sentences < k).sum(dim=1, keepdim=True)
            x = _gathered(embedded, starts + torch.arange(L))
            if self.is_released:  # padding is read as words are
                padding = prev_output_tokens.new_full((1, 1), self.dictionary.pad())
                is_here = _moved(torch.arange(L) < lengths.unsqueeze(1), x).unsqueeze(-1)
                x = torch.where(is_here, x, self.embed(padding.expand(len(embedded), L)))
                lengths = lengths.clamp(min=self.segment_length)
            read, hidden = self.read_segment(x, lengths, memory)
            reads.append(read)
            num_read.append(num_read[-1] + L)
            if k < int(sentences.max()):
                # A story may have more sentences than images: the last image then goes on.
                following = images[:, min(k + 1, images.size(1) - 1)]
                memory = self.fuse(
                    self._remember(memory, hidden, lengths, self.segment_length), following
                )
        if not reads:
            return torch.zeros_like(embedded), None
        places = torch.tensor(num_read)[sentences.clamp(max=len(reads))] + positions
        output = _gathered(torch.cat(reads, dim=1), places)
        return output.masked_fill(_moved(~is_word, output).unsqueeze(-1), 0), None

    def _step(self, tokens: Tensor, images: Tensor, incremental_state: dict) -> Tensor:
        """Compute features [B, 1, D] of one new word per row, ``tokens`` [B].

        The incremental state has a cache with three parts per layer: keys, values and inputs. Each
        part begins with the slots of the memory, followed by the words of the current sentence.
        """
        M = self.memory_length
        ages = torch.arange(M, 0, -1, device=tokens.device)
        saved = self.get_incremental_state(incremental_state, STATE)
        if saved is None:
            sentence, position = next_positions(None, tokens, self.separator)
            valid_mask = torch.ones(len(tokens), M, dtype=torch.bool, device=tokens.device)
            cache = self._empty_cache(images)
            all_rows = torch.arange(len(tokens), device=tokens.device)
            first = self.first_memory(images[:, 0], tokens.device)
            self._write_memory(cache, valid_mask, all_rows, first)
        else:
            last, cache, valid_mask = saved["position"], saved["cache"], saved["valid_mask"]
            sentence, position = next_positions((saved["sentence"], last), tokens, self.separator)
            rows = (position == 0).nonzero().squeeze(1)
            if len(rows):
                # These rows begin a new sentence: renew their memory (Li et al. 2020, eq. 9 to 12).
                states = [part[rows] for part in cache.parts[2::3]]  # [r, M + C, D]
                memory = SegmentMemory([x[:, :M] for x in states], ages, valid_mask[rows])
                words = [x[:, M:] for x in states]
                renewed = self._remember(memory, words, last[rows] + 1, self.segment_length)
                following = images[rows, sentence[rows].clamp(max=images.size(1) - 1)]
                self._write_memory(cache, valid_mask, rows, self.fuse(renewed, following))
        cache.reserve(position + M)
        places = torch.arange(cache.capacity - M, device=tokens.device)
        offsets = torch.cat([ages, -places])
        distances = (position.unsqueeze(1) + offsets).unsqueeze(1)  # [B, 1, M + C]
        is_filled = torch.cat(
            [valid_mask, valid_mask.new_ones(len(tokens), cache.capacity - M)], dim=1
        )
        attention_mask = self._visibility(distances, is_filled)
        distances = distances.clamp(min=0)
        tables = None if saved is None else saved["tables"]
        if tables is None or tables[0].size(1) < cache.capacity + 1:
            # Distances do not depend on words, so their keys are kept until the cache grows.
            tables = [layer.attention.distance_keys(cache.capacity + 1) for layer in self.layers]
        x = self.embed(tokens.unsqueeze(1))
        for i, layer in enumerate(self.layers):
            attention = layer.attention
            # The inputs are kept, because the next memory is made from them and not from keys and
            # values.
            cache.write(3 * i + 2, x.squeeze(1), position + M)
            key, value = attention.keys_and_values(x)
            keys = cache.write(3 * i, key.squeeze(2), position + M)
            values = cache.write(3 * i + 1, value.squeeze(2), position + M)
            query = split_heads(attention.query_proj(x), attention.num_heads)
            weights = attention.weights(query, keys, tables[i], distances, attention_mask)
            x = layer.finish(x, merge_heads(torch.matmul(weights, values)))
        state = {
            "sentence": sentence,
            "position": position,
            "valid_mask": valid_mask,
            "cache": cache,
            "tables": tables,
        }
        self.set_incremental_state(incremental_state, STATE, state)
        return self.dropout(x)

    def _empty_cache(self, like: Tensor) -> SentenceCache:
        attention = self.layers[0].attention
        heads = (len(like), attention.num_heads, attention.head_dim)
        shapes = [heads, heads, (len(like), attention.dim)] * len(self.layers)
        return SentenceCache.empty(shapes, like, memory_length=self.memory_length)

    def _write_memory(
        self, cache: SentenceCache, valid_mask: Tensor, rows: Tensor, memory: SegmentMemory
    ) -> None:
        """Write a memory of r rows to the rows ``rows`` [r] of the cache and of ``valid_mask`` [B,
        M].
        """
        slots = self.memory_length - memory.ages
        valid_mask[rows] = False
        valid_mask[rows.unsqueeze(1), slots] = memory.valid_mask
        for i, (layer, states) in enumerate(zip(self.layers, memory.contents)):
            for part, x in enumerate((*layer.attention.keys_and_values(states), states)):
                slot_first = cache.parts[3 * i + part].movedim(-2, 1)  # [B, M + C, ...]
                slot_first[rows.unsqueeze(1), slots] = x.movedim(-2, 1).expand(
                    -1, len(slots), *slot_first.shape[2:]
                )
        cache.begin_memory(rows)

    def _released_step(self, tokens: Tensor, images: Tensor, incremental_state: dict) -> Tensor:
        """Compute features [B, 1, D] of the last word of ``tokens`` [B, T] (``--compat released``).

        As in the code of Li et al. 2020, all words of the current sentence are read at each step,
        and their states are added to the memory each time.
        """
        saved = self.get_incremental_state(incremental_state, STATE)
        if saved is None:
            sentence, position = next_positions(None, tokens[:, -1], self.separator)
            memory = self.first_memory(images[:, 0], tokens.device)
            # Written out, because rows renew their slots at different steps here.
            size = (-1, self.memory_length, -1)
            memory = memory._replace(contents=[x.expand(size) for x in memory.contents])
        else:
            before = (saved["sentence"], saved["position"])
            sentence, position = next_positions(before, tokens[:, -1], self.separator)
            ages = torch.arange(self.memory_length, 0, -1, device=tokens.device)
            memory = SegmentMemory(list(saved["contents"]), ages, saved["valid_mask"])
            rows = torch.arange(len(tokens), device=tokens.device)
            following = images[rows, sentence.clamp(max=images.size(1) - 1)]
            is_start = (position == 0)[:, None, None]
            fused = self.fuse(memory, following).contents
            contents = [torch.where(is_start, x, y) for x, y in zip(fused, memory.contents)]
            memory = memory._replace(contents=contents)
        places = torch.arange(int(position.max()) + 1, device=tokens.device)
        times = (tokens.size(1) - 1 - position).unsqueeze(1) + places
        words = tokens.gather(1, times.clamp(max=tokens.size(1) - 1))
        read, hidden = self.read_segment(self.embed(words), position + 1, memory)
        # 0: the released code does not pad the beginning of a sentence when it decodes.
        memory = self._remember(memory, hidden, position + 1, 0)
        state = {
            "sentence": sentence,
            "position": position,
            "valid_mask": memory.valid_mask,
            "contents": memory.contents,
        }
        self.set_incremental_state(incremental_state, STATE, state)
        # Rows are at different positions, so the last word is not at the end of each.
        return read.gather(1, position[:, None, None].expand(-1, 1, read.size(-1)))

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        saved = self.get_incremental_state(incremental_state, STATE)
        if saved is None:
            return
        state = dict(saved)
        for key in ("sentence", "position", "valid_mask", "contents"):
            if key in saved:
                state[key] = select_rows(saved[key], new_order)
        if "cache" in saved:
            saved["cache"].select(new_order)
        self.set_incremental_state(incremental_state, STATE, state)


def _moved(indices: Tensor, like: Tensor) -> Tensor:
    return indices.to(like.device, non_blocking=True)


def _gathered(x: Tensor, places: Tensor) -> Tensor:
    """Return the vectors of x [B, T, D] at indices ``places`` [B, N] clamped to T - 1."""
    index = _moved(places.clamp(max=x.size(1) - 1), x)
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.size(-1)))


def _packed(x: Tensor, places: Optional[Tensor]) -> Tensor:
    flat = x.flatten(0, 1)
    return flat if places is None else flat[places]


def _padded(x: Tensor, places: Optional[Tensor], shape: tuple[int, int]) -> Tensor:
    """Undo :func:`_packed`; indices that are not in ``places`` get zeros."""
    if places is not None:
        x = x.new_zeros(shape[0] * shape[1], x.size(-1)).index_copy(0, places, x)
    return x.view(*shape, -1)


@register_model("transtory_xl", dataclass=TranstoryXLConfig)
class TranstoryXLModel(StoryModel):
    """Model that writes a story from five images (Transtory-XL)."""

    @classmethod
    def build_model(cls, cfg: TranstoryXLConfig, task: Any) -> "TranstoryXLModel":
        images = ImageVectors(task.feature_dim, cfg.picture_dim, task.rows_per_image)
        encoder = TranstoryXLEncoder(images)
        decoder = TranstoryXLDecoder(task.target_dictionary, task.separator_index, cfg)
        return cls(encoder, decoder, task)


register_presets(
    "transtory_xl",
    {
        "transtory_xl_tiny": {
            "picture_dim": 6,
            "embedding_dim": 5,
            "model_dim": 8,
            "decoder_attention_heads": 2,
            "head_dim": 3,
            "decoder_ffn_dim": 10,
        }
    },
)
