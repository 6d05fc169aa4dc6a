"""Visual storytellers, batched, against themselves story by story and sentence by sentence.

    python benchmarks/visual_storytelling.py training [--threads 2] [--rounds 3] [--arch ...]
    python benchmarks/visual_storytelling.py generation [--threads 2] [--rounds 3] [--arch ...]

Sizes are the papers': pooled features of 2,048 channels, a dictionary of 10,000 types, sentences
of 8 to 15 words. Stories, features and weights are drawn.

Training: forward, loss and backward of a batch of 64 stories, without optimizer. One by one: the
images are encoded together (batch normalisation needs them), then each sentence of each story is
read, and its loss taken, by itself, as in the released code; of 8 stories, times 8. Tokens a
second give the time of an epoch of VIST's 40,155 stories beside GLAC's.

Generation: stories of 12 words a sentence. One by one: greedily, a word at a time; the LSTMs step
(by ``nn.LSTM``), the transformers read their sentence's beginning again at each word, as the
released code does; of 4 stories. Batched: 64 stories through fairseq's generator, greedily.
"""

import argparse
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.sequence_generator import SequenceGenerator

import fairseq_mm  # noqa: F401 - registers the models
from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR
from fairseq_mm.generation.constraints import StoryConstraints, constrain_search

ARCHES = (
    "glac",
    "glac_decoder_attention",
    "transtory_decoder",
    "transtory_full",
    "transtory_xl",
)
TYPES, DIM, STORIES, EPOCH = 10_000, 2048, 64, 40_155
WORDS = 12  # of a generated sentence


def make_task() -> Namespace:
    words = Dictionary()
    for number in range(TYPES - words.nspecial - 1):
        words.add_symbol(f"w{number}")
    return Namespace(
        target_dictionary=words,
        separator_index=words.add_symbol(SEPARATOR),
        feature_dim=DIM,
        feature_attributes={},
        rows_per_image=1,
    )


TASK = make_task()


def build(arch: str) -> Any:
    model_class = ARCH_MODEL_REGISTRY[arch]
    cfg = Namespace()
    ARCH_CONFIG_REGISTRY[arch](cfg)
    fields = model_class.__dataclass.__dataclass_fields__  # type: ignore[attr-defined]
    cfg = Namespace(**{**{key: x.default for key, x in fields.items()}, **vars(cfg)})
    torch.manual_seed(1)
    return model_class.build_model(cfg, TASK)


def draw_stories() -> tuple[torch.Tensor, list[list[torch.Tensor]], torch.Tensor, torch.Tensor]:
    """Features, sentences (start token first), and the stories as input and target."""
    torch.manual_seed(2)
    features = torch.randn(STORIES, NUM_IMAGES, DIM).abs()
    pad, end = TASK.target_dictionary.pad(), TASK.target_dictionary.eos()
    sentences = []
    for _ in range(STORIES):
        lengths = torch.randint(8, 16, (NUM_IMAGES,)).tolist()
        starts = [end] + [TASK.separator_index] * (NUM_IMAGES - 1)
        words = [torch.randint(4, TYPES - 1, (length,)) for length in lengths]
        sentences.append([torch.cat([torch.tensor([x]), y]) for x, y in zip(starts, words)])
    T = max(sum(map(len, story)) for story in sentences)
    inputs, targets = torch.full((2, STORIES, T), pad).unbind()
    for row, story in enumerate(sentences):
        line = torch.cat(story)
        inputs[row, : len(line)] = line
        targets[row, : len(line)] = torch.cat([line[1:], torch.tensor([end])])
    return features, sentences, inputs, targets


def loss_of(model: Any, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = model.decoder.output_layer(states)
    pad = TASK.target_dictionary.pad()
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=pad)


def row_of(encoded: dict[str, list[torch.Tensor]], row: int) -> dict[str, list[torch.Tensor]]:
    return {key: [x[0][row : row + 1]] for key, x in encoded.items()}


class OneByOne:
    """A story's sentences in turn, with what the model carries from one to the next.

    Args:
        model: of ``ARCHES``.
        encoded: the encoder's output for one story.
    """

    def __init__(self, model: Any, encoded: dict[str, list[torch.Tensor]]) -> None:
        self.decoder = model.decoder
        self.vectors = encoded["vectors"][0]
        self.is_missing = encoded["image_padding_mask"][0]
        self.sentence = -1
        self.carried: Any = None
        if hasattr(self.decoder, "lstm"):
            self.carried = self.decoder._initial_state(self.vectors)

    def begin(self) -> None:
        """Goes on to the next sentence."""
        self.sentence += 1
        if not hasattr(self.decoder, "read_segment"):
            return
        image = self.vectors[:, self.sentence]
        if self.sentence == 0:
            self.memory = self.decoder.first_memory(image)
        else:
            self.memory = self.decoder.fuse(self.decoder._remember(*self.carried), image)

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        """``[1, L, H]`` of words ``[1, L]``: of a whole sentence, or of its beginning."""
        decoder, vector = self.decoder, self.vectors[:, self.sentence]
        if hasattr(decoder, "read_segment"):
            lengths = torch.tensor([tokens.size(1)])
            read, hidden = decoder.read_segment(decoder.embed(tokens), lengths, self.memory)
            self.carried = (self.memory, hidden, lengths)
            return read
        if not hasattr(decoder, "lstm"):
            is_one = decoder.layers[0].pictures.__class__.__name__ == "CurrentImageAttention"
            out = {
                "vectors": [vector.unsqueeze(1) if is_one else self.vectors],
                "image_padding_mask": [self.is_missing[:, :1] if is_one else self.is_missing],
            }
            return decoder.extract_features(tokens, out)[0]
        embedded = decoder.embedding_dropout(decoder.embedding(tokens))
        if decoder.slices == 1:
            inputs = torch.cat([vector.unsqueeze(1).expand(-1, tokens.size(1), -1), embedded], -1)
            state = tuple(x.transpose(0, 1).contiguous() for x in self.carried)
            outputs, state = decoder.lstm(inputs, state)
            self.carried = tuple(x.transpose(0, 1) for x in state)
        else:
            slices = vector.view(1, decoder.slices, -1)
            query = torch.zeros_like(slices[:, 0])
            state = tuple(x.transpose(0, 1).contiguous() for x in self.carried)
            steps = []
            for t in range(tokens.size(1)):
                weights = torch.matmul(slices, query.unsqueeze(-1)).softmax(dim=1)
                x = torch.cat([(weights * slices).sum(dim=1), embedded[:, t]], dim=-1)
                output, state = decoder.lstm(x.unsqueeze(1), state)
                query = output[:, 0]
                steps.append(output)
            self.carried = tuple(x.transpose(0, 1) for x in state)
            outputs = torch.cat(steps, dim=1)
        return decoder.dropout(outputs)


def timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def training(arches: Sequence[str], rounds: int) -> None:
    features, sentences, inputs, targets = draw_stories()
    mask = torch.zeros(features.shape[:2], dtype=torch.bool)
    words = int(targets.ne(TASK.target_dictionary.pad()).sum())
    few = STORIES // 8
    print("| system | one by one, s | batched, s | ratio | words/s | epoch beside the first's |")
    print("|---|---|---|---|---|---|")
    first = None
    for arch in arches:
        model = build(arch).train()

        def batched(model: Any = model) -> None:
            states, _ = model.decoder.extract_features(inputs, model.encoder(features, mask))
            loss_of(model, states, targets).backward()

        def one_by_one(model: Any = model) -> None:
            encoded = model.encoder(features, mask)
            loss = torch.zeros(())
            for row in range(few):
                reader = OneByOne(model, row_of(encoded, row))
                for number, sentence in enumerate(sentences[row]):
                    following = TASK.separator_index
                    if number == NUM_IMAGES - 1:
                        following = TASK.target_dictionary.eos()
                    reader.begin()
                    target = torch.cat([sentence[1:], torch.tensor([following])])
                    loss = loss + loss_of(model, reader.read(sentence.unsqueeze(0)), target)
            loss.backward()

        batched()
        times = [(timed(batched), timed(one_by_one)) for _ in range(rounds)]
        fast = statistics.median(x for x, _ in times)
        slow = statistics.median(y for _, y in times) * STORIES / few
        first = first or fast
        print(
            f"| {arch} | {slow:.1f} | {fast:.2f} | {slow / fast:.1f} | {words / fast:.0f} | "
            f"{fast / first:.2f} ({fast * EPOCH / STORIES / 3600:.2f} h) |",
            flush=True,
        )


def generate_one_by_one(model: Any, features: torch.Tensor) -> None:
    mask = torch.zeros(features.shape[:2], dtype=torch.bool)
    encoded = model.encoder(features, mask)
    for row in range(len(features)):
        reader = OneByOne(model, row_of(encoded, row))
        steps = hasattr(model.decoder, "lstm")
        for number in range(NUM_IMAGES):
            start = TASK.separator_index if number else TASK.target_dictionary.eos()
            tokens = torch.tensor([[start]])
            reader.begin()
            for _ in range(WORDS + 1):
                read = reader.read(tokens[:, -1:] if steps else tokens)
                word = model.decoder.output_layer(read[:, -1])[:, 4:-1].argmax(dim=1) + 4
                tokens = torch.cat([tokens, word.unsqueeze(1)], dim=1)


def generation(arches: Sequence[str], rounds: int) -> None:
    features = draw_stories()[0]
    mask = torch.zeros(features.shape[:2], dtype=torch.bool)
    constraints = StoryConstraints(
        TASK.target_dictionary, min_words_per_sentence=WORDS, max_words_per_sentence=WORDS
    )
    sample = {
        "id": torch.arange(STORIES),
        "net_input": {"features": features, "padding_mask": mask},
    }
    few = 4
    some = features[:few]
    print("| system | one by one, s a story | batched, s a story | ratio | ms a step |")
    print("|---|---|---|---|---|")
    for arch in arches:
        model = build(arch).eval()
        generator = SequenceGenerator([model], TASK.target_dictionary, beam_size=1)
        constrain_search(generator, constraints)

        def batched(model: Any = model, generator: Any = generator) -> None:
            found = generator.generate([model], sample)
            assert all(len(x[0]["tokens"]) == constraints.max_length for x in found)

        with torch.no_grad():
            batched()
            times = []
            for _ in range(rounds):
                fast = timed(batched)
                times.append((fast, timed(lambda model=model: generate_one_by_one(model, some))))
        fast = statistics.median(x for x, _ in times) / STORIES
        slow = statistics.median(y for _, y in times) / few
        step = fast * STORIES / constraints.max_length
        print(
            f"| {arch} | {slow:.3f} | {fast:.4f} | {slow / fast:.1f} | {1000 * step:.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("training", "generation"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arch", choices=ARCHES, nargs="+", default=ARCHES)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"PyTorch {torch.__version__}, {args.threads} threads\n")
    {"training": training, "generation": generation}[args.what](args.arch, args.rounds)


if __name__ == "__main__":
    main()
