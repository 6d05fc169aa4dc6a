"""Training steps of VG-BART and VG-T5 beside their text-only baselines; parts of ``run.py``.

    python benchmarks/video_summarization.py [--family t5] [--threads 2] [--rounds 3]

Sizes are the paper's: transcripts of 512 tokens, summaries of 64, 256 frames of 2,048 channels,
BART base with a dictionary of 51,200, T5 base with one of 32,128; batches of 4. Weights, texts and
features are drawn. A step is forward, loss and backward. In a round every system has one turn, and
a round's ratio is to the first system's turn in it; medians of both are printed.
"""

import argparse
import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.bart import BARTModel
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.sequence_generator import SequenceGenerator

import fairseq_mm  # noqa: F401 - registers the models
from fairseq_mm.compat import activate, allocator
from fairseq_mm.generation.beam_search import BeamSearch
from fairseq_mm.models.vg_bart import bart_options

ADD_ON = {"video_encoder_layers": 0}
DOT = {**ADD_ON, "fusion": "dot_product", "fusion_encoder_layers": "LAST"}
# family -> name of a system -> its options; the first is the text-only baseline, to which the
# others are compared
TRAINING: dict[str, dict[str, dict[str, Any]]] = {
    "bart": {
        "bart": {},
        "vg_bart": ADD_ON,
        "vg_bart, one layer": {**ADD_ON, "fusion_encoder_layers": "LAST"},
        "vg_bart, one layer, dot product": DOT,
        "vg_bart, one layer, dot product, no gate": {**DOT, "forget_gate": "off"},
        "vg_bart with VTF": {},
    },
    "t5": {"t5": {}, "vg_t5": ADD_ON, "vg_t5 with VTF": {}},
}
TYPES = {"bart": 51_200, "t5": 32_128}
PAPER = Namespace(source=512, target=64, frames=256, channels=2048, beam=5)
SMALL = Namespace(types=30, source=9, target=5, frames=4, channels=8, beam=2)


def make_task(sizes: Namespace) -> Namespace:
    words = Dictionary()
    for number in range(sizes.types - words.nspecial):
        words.add_symbol(f"w{number}")
    return Namespace(
        source_dictionary=words,
        target_dictionary=words,
        feature_dim=sizes.channels,
        feature_attributes={},
        max_frames=sizes.frames,
    )


def reads_text_only(name: str) -> bool:
    return not name.startswith("vg_")


def build(name: str, chosen: dict[str, Any], task: Namespace, *, small: bool) -> Any:
    is_t5 = "t5" in name
    # Without its fusions, vg_bart's options are BART's; T5 has its own.
    is_plain_t5 = is_t5 and reads_text_only(name)
    arch = ("t5" if is_plain_t5 else "vg_t5" if is_t5 else "vg_bart") + (
        "_tiny" if small else "_base"
    )
    last = "2" if small else "12" if is_t5 else "6"
    cfg = Namespace(**{key: last if x == "LAST" else x for key, x in chosen.items()})
    ARCH_CONFIG_REGISTRY[arch](cfg)
    model_class = ARCH_MODEL_REGISTRY[arch]
    fields = model_class.__dataclass.__dataclass_fields__  # type: ignore[attr-defined]
    cfg = Namespace(**{**{key: x.default for key, x in fields.items()}, **vars(cfg)})
    torch.manual_seed(1)
    if reads_text_only(name) and not is_t5:
        return BARTModel.build_model(bart_options(cfg), task)
    return model_class.build_model(cfg, task)


def draw(sizes: Namespace, batch: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    transcripts = torch.randint(4, sizes.types, (batch, sizes.source))
    summaries = torch.randint(4, sizes.types, (batch, sizes.target))
    transcripts[:, -1] = summaries[:, 0] = 2
    return {
        "src_tokens": transcripts,
        "src_lengths": torch.full((batch,), sizes.source),
        "prev_output_tokens": summaries,
        "features": torch.rand(batch, sizes.frames, sizes.channels) * 3,
        "padding_mask": torch.zeros(batch, sizes.frames, dtype=torch.bool),
    }


def inputs_of(name: str, drawn: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if reads_text_only(name):
        return {key: x for key, x in drawn.items() if key not in ("features", "padding_mask")}
    return drawn


def training_step(name: str, model: Any, drawn: dict[str, torch.Tensor]) -> Callable[[], None]:
    inputs = inputs_of(name, drawn)
    targets = drawn["prev_output_tokens"].roll(-1, dims=1)
    model.train()

    def step() -> None:
        model.zero_grad()
        logits = model(**inputs)[0]
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()

    return step


def writing(
    name: str,
    model: Any,
    drawn: dict[str, torch.Tensor],
    sizes: Namespace,
    *,
    no_repeat_ngram_size: int = 0,
) -> Callable[[], list[list[int]]]:
    """Return a function that writes with fairseq's generator, and returns each best text."""
    inputs = inputs_of(name, drawn)
    sample = {"net_input": {key: x for key, x in inputs.items() if key != "prev_output_tokens"}}
    model.eval()
    generator = SequenceGenerator(
        [model],
        model.decoder.dictionary,
        beam_size=sizes.beam,
        max_len_b=sizes.target - 1,
        min_len=sizes.target - 1,
    )
    # fairseq's own model keeps its own search
    if name not in TYPES:
        generator.search = BeamSearch(generator.tgt_dict)
    if no_repeat_ngram_size:
        # as the tasks of this package do: activated, it replaces fairseq's blocking of n-grams
        activate()
        generator.repeat_ngram_blocker = NGramRepeatBlock(no_repeat_ngram_size, use_extension=False)

    def write() -> list[list[int]]:
        found = generator.generate([model], sample, bos_token=getattr(model, "start_index", None))
        assert all(len(beams[0]["tokens"]) == sizes.target for beams in found)
        return [beams[0]["tokens"].tolist() for beams in found]

    return write


def compare(turns: dict[str, Callable[[], Any]], rounds: int) -> None:
    """Print a table of times, and of their ratios to the first's."""
    times: dict[str, list[float]] = {name: [] for name in turns}
    for turn in turns.values():
        turn()
    for _ in range(rounds):
        for name, turn in turns.items():
            start = time.perf_counter()
            turn()
            times[name].append(time.perf_counter() - start)
    first = next(iter(times.values()))
    print("| system | s | ratio |\n|---|---|---|")
    for name, found in times.items():
        ratio = statistics.median(x / y for x, y in zip(found, first))
        print(f"| {name} | {statistics.median(found):.3g} | {ratio:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=TYPES, default="bart")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the program")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    allocator.keep_freed_memory()  # as the commands do
    sizes = SMALL if args.small else Namespace(types=TYPES[args.family], **vars(PAPER))
    task, drawn = make_task(sizes), draw(sizes, 4)
    turns = {
        name: training_step(name, build(name, chosen, task, small=args.small), drawn)
        for name, chosen in TRAINING[args.family].items()
    }
    compare(turns, args.rounds)


if __name__ == "__main__":
    main()
