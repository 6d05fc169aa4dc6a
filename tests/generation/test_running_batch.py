"""Batches that waiting inputs join: the same texts, scores, order and draws as in fixed batches."""

import pytest
import torch
from numerics import assert_close
from toy_text_models import SOURCE_WORDS, save_text_model

import fairseq_mm
from fairseq_mm.errors import UserError
from fairseq_mm.generation.running_batch import RunningBatch
from fairseq_mm.inference import generator as engine

# prompts of 2, 5 and 7 words
PROMPTS = [" ".join(SOURCE_WORDS[i % 3 + 3 :][: (2, 5, 7)[i % 3]]) for i in range(13)]
SAMPLING = {"sampling": True, "sampling_topk": 6, "temperature": 1.5, "seed": 5, "min_len": 1}
OPTIONS = {
    "sampling": {**SAMPLING, "max_len_b": 11},
    "nucleus": {
        "sampling": True,
        "sampling_topp": 0.9,
        "typical_p": 0.9,
        "min_len": 1,
        "max_len_b": 12,
    },
    "samples": {**SAMPLING, "beam": 3, "nbest": 3, "max_len_b": 9},
    "best samples": {**SAMPLING, "beam": 3, "mbr": "bleu", "max_len_b": 9},
    "greedy": {"beam": 1, "min_len": 1, "max_len_b": 17},
    "beam": {"beam": 4, "nbest": 4, "min_len": 3, "max_len_b": 12, "lenpen": 1.5},
    "n-grams": {**SAMPLING, "no_repeat_ngram_size": 1, "max_len_b": 14},
    "bigrams": {"beam": 2, "no_repeat_ngram_size": 2, "min_len": 1, "max_len_b": 12},
    "prefix": {**SAMPLING, "prefix": "I opened", "max_len_b": 12},
    "prefix of a beam": {"beam": 3, "prefix": "I opened", "min_len": 1, "max_len_b": 12},
    "same length": {**SAMPLING, "min_len": 6, "max_len_b": 6},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    options = {
        "story": ("conv_story_tiny", {}),
        "padding is read": ("conv_story_tiny", {"compat": "released"}),
        "language model": ("gcnn_lm_tiny", {}),
    }
    files = {
        name: str(save_text_model(folder / f"{i}.pt", arch, **values))
        for i, (name, (arch, values)) in enumerate(options.items())
    }
    files["fusion"] = str(
        save_text_model(
            folder / "fusion.pt", seed=3, pretrained="True", pretrained_checkpoint=files["story"]
        )
    )
    files["ensemble"] = ":".join([files["story"], files["fusion"]])
    return {name: fairseq_mm.from_pretrained(file, device="cpu") for name, file in files.items()}


@pytest.fixture
def joins(monkeypatch):
    """Numbers of inputs that have joined a running batch."""
    numbers: list[int] = []
    join = RunningBatch.join

    def counted(batch, other):
        numbers.append(len(other))
        join(batch, other)

    monkeypatch.setattr(RunningBatch, "join", counted)
    # short texts would not wait for a join
    monkeypatch.setattr(engine, "JOINING_STEPS", 0.1)
    return numbers


def generate(model, **options):
    if model.loaded.are_language_models:
        return model.generate(n=len(PROMPTS), **options)
    return model.generate(PROMPTS, **options)


def in_fixed_batches(model, monkeypatch, **options):
    with monkeypatch.context() as patch:
        patch.setattr(engine, "can_join", lambda *others: False)
        return generate(model, **options)


def check_equal(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert [best.tokens for best in ours] == [best.tokens for best in theirs]
        assert [best.index for best in ours] == [best.index for best in theirs]
        assert [best.source for best in ours] == [best.source for best in theirs]
        assert_close([best.score for best in ours], [best.score for best in theirs])
        for one, other in zip(ours, theirs):
            assert_close(one.positional_scores, other.positional_scores)


@pytest.mark.parametrize("name", OPTIONS)
def test_texts_are_those_of_fixed_batches(models, joins, monkeypatch, name):
    model = models["story"]
    expected = in_fixed_batches(model, monkeypatch, batch_size=8, **OPTIONS[name])
    assert not joins
    for size in (1, 3, 8):
        check_equal(generate(model, batch_size=size, **OPTIONS[name]), expected)
        # of one input at a time, none is left to join
        assert bool(joins) == (size > 1 and name != "same length")
        joins.clear()
    lengths = {len(best.tokens) for several in expected for best in several}
    assert len(lengths) > 1 or name == "same length"


@pytest.mark.parametrize("name", ["padding is read", "language model", "fusion", "ensemble"])
@pytest.mark.parametrize("search", ["sampling", "beam"])
def test_every_model_writes_the_texts_of_fixed_batches(models, joins, monkeypatch, name, search):
    expected = in_fixed_batches(models[name], monkeypatch, batch_size=4, **OPTIONS[search])
    # where padding is read, only prompts of the same length may share a batch
    size = 2 if name == "padding is read" else 4
    check_equal(generate(models[name], batch_size=size, **OPTIONS[search]), expected)
    assert joins or search == "beam"


def test_a_story_is_yielded_before_later_inputs_are_begun(models, monkeypatch):
    model = models["story"]
    begun = []
    begin = RunningBatch.__init__

    def record(batch, generator, sample, keys, **options):
        begun.extend(keys)
        begin(batch, generator, sample, keys, **options)

    monkeypatch.setattr(RunningBatch, "__init__", record)
    examples = list(model.processor.examples(PROMPTS))
    stream = model.stream(examples, model.config(**SAMPLING, max_len_b=9), batch_size=2)
    next(stream)
    assert len(begun) < len(PROMPTS)
    # between two texts, PyTorch's settings are the caller's
    assert torch.is_grad_enabled()
    stream.close()


def test_a_watched_search_has_fixed_batches(models, joins):
    model = models["story"]
    examples = list(model.processor.examples(PROMPTS))
    config = model.config(**OPTIONS["sampling"])
    watched = list(model.stream(examples, config, batch_size=3, watch=lambda progress: None))
    assert not joins
    check_equal(list(model.stream(examples, config, batch_size=3)), watched)
    assert joins


def test_a_search_without_finite_scores_is_explained(models, monkeypatch):
    model = models["story"]
    nan = torch.full_like(model.models[0].decoder.output_proj.bias, float("nan"))
    monkeypatch.setattr(model.models[0].decoder.output_proj.bias, "data", nan)
    with pytest.raises(UserError, match="weights hold NaN or infinite values: no story"):
        generate(model, batch_size=2, beam=1, max_len_b=3)


class ShortMemory:
    """Lets the encoder of a model fail for more rows than ``most``, as PyTorch does."""

    def __init__(self, monkeypatch, model, most, error):
        self.sizes = []
        encoder = model.models[0].encoder
        forward = encoder.forward

        def limited(src_tokens, *others, **options):
            self.sizes.append(len(src_tokens))
            if len(src_tokens) > most:
                raise error
            return forward(src_tokens, *others, **options)

        monkeypatch.setattr(encoder, "forward", limited)


ERRORS = [
    RuntimeError("could not create a primitive"),  # of oneDNN
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("CUDA out of memory. Tried to allocate 2 GiB."),
    MemoryError(),
]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("is_continuous", [False, True])
def test_a_batch_that_does_not_fit_is_halved(models, monkeypatch, caplog, error, is_continuous):
    model, options = models["story"], OPTIONS["sampling"]
    expected = generate(model, batch_size=2, **options)
    memory = ShortMemory(monkeypatch, model, 3, error)
    caplog.clear()
    if is_continuous:
        found = generate(model, batch_size=8, **options)
    else:
        found = in_fixed_batches(model, monkeypatch, batch_size=8, **options)
    check_equal(found, expected)
    # 8 and 4 do not fit, and all later batches have at most 2
    assert memory.sizes[:3] == [8, 4, 2]
    assert max(memory.sizes[2:]) == 2
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "memory is short for batches of 8 prompts: they have at most 4 now; --batch-size 4 saves "
        "the attempt"
    )


def test_texts_that_have_ended_are_not_written_again(models, monkeypatch):
    """Memory that becomes short in the middle of a continuous batch."""
    model, options = models["story"], OPTIONS["sampling"]
    expected = generate(model, batch_size=4, **options)
    step, calls, ended = RunningBatch.step, [], []

    def failing(batch):
        calls.append(len(batch))
        if len(calls) == 9:
            raise RuntimeError("CUDA out of memory.")
        finished = step(batch)
        ended.extend(key for key, _ in finished)
        return finished

    monkeypatch.setattr(RunningBatch, "step", failing)
    check_equal(generate(model, batch_size=4, **options), expected)
    assert sorted(ended) == list(range(len(PROMPTS)))


def test_one_input_that_does_not_fit_is_a_user_error(models, monkeypatch):
    ShortMemory(monkeypatch, models["story"], 0, RuntimeError("CUDA out of memory. Tried"))
    with pytest.raises(UserError) as caught:
        generate(models["story"], batch_size=3, **OPTIONS["greedy"])
    assert str(caught.value) == (
        "memory is short even for one of the prompts: CUDA out of memory. Tried"
    )


def test_other_errors_are_not_taken_for_short_memory(models, monkeypatch):
    ShortMemory(monkeypatch, models["story"], 0, RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes"):
        generate(models["story"], batch_size=3, **OPTIONS["greedy"])
