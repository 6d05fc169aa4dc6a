"""Texts can be watched while they are generated, and a generation can be ended early."""

import pytest
import torch
from toy_data import make_videos_folder
from toy_summarizer import train_summarizer
from toy_text_models import save_text_model
from toy_visual_stories import save_pixel_story_model

import fairseq_mm

PROMPTS = ["You find a door .", "the old house", "a door"]


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    path = save_text_model(tmp_path_factory.mktemp("stories") / "checkpoint_best.pt")
    return fairseq_mm.from_pretrained(path, device="cpu")


def watch_all(model, inputs, **options):
    """Hypotheses, and position -> the lines that were seen of it, one per step."""
    seen = {position: [] for position in range(len(inputs))}

    def watch(progress):
        for position in progress.positions:
            seen[position].append(progress.decode(position).line)

    examples = list(model.processor.examples(inputs))
    generated = list(model.stream(examples, model.config(**options), watch=watch, batch_size=2))
    return generated, seen


@pytest.mark.parametrize(
    "options", [{"beam": 1}, {"sampling": True, "seed": 3}], ids=["greedy", "sampling"]
)
def test_each_step_shows_one_word_more(stories, options):
    generated, seen = watch_all(stories, PROMPTS, min_len=2, max_len_b=12, **options)
    lengths = set()
    for position, (best, *_) in enumerate(generated):
        words = best.line.split()
        lengths.add(len(words))
        # before the first word, after each, and then the end of the text is sought
        assert seen[position] == [" ".join(words[:count]) for count in range(len(words) + 1)]
    assert len(lengths) > 1  # so that a text left its batch before the others


def test_watching_changes_no_text(stories):
    options = {"beam": 4, "nbest": 2, "min_len": 2, "max_len_b": 12}
    generated, seen = watch_all(stories, PROMPTS, **options)
    assert generated == stories.generate(PROMPTS, batch_size=2, **options)
    assert all(lines for lines in seen.values())


def test_sentences_of_a_visual_story_are_seen_as_they_come(tmp_path):
    model = fairseq_mm.from_pretrained(save_pixel_story_model(tmp_path), device="cpu")
    features = torch.rand(5, 1, 512).numpy()
    seen = []
    examples = list(model.processor.examples([list(features)]))
    config = model.config(beam=1, max_words_per_sentence=3)
    (((best, *_),)) = model.stream(
        examples, config, watch=lambda progress: seen.append(progress.decode(0).sentences)
    )
    assert seen[-1] == best.sentences
    assert [len(sentences) for sentences in seen] == sorted(len(s) for s in seen)


def test_an_exception_ends_the_generation_and_the_next_is_whole(stories):
    expected = stories.generate(PROMPTS, min_len=2, max_len_b=12)
    steps = []

    def stop(progress):
        steps.append(progress.positions)
        if len(steps) == 3:
            raise TimeoutError

    examples = list(stories.processor.examples(PROMPTS))
    config = stories.config(min_len=2, max_len_b=12)
    with pytest.raises(TimeoutError):
        list(stories.stream(examples, config, watch=stop))
    assert [sorted(positions) for positions in steps] == [[0, 1, 2]] * 3
    assert list(stories.stream(examples, config)) == expected


def test_inputs_of_one_index_share_a_batch(tmp_path):
    """Each text has the indexed OOV tokens of its own source, not of another with its index."""
    data = make_videos_folder(tmp_path / "data", with_features=False, indexed_oov=3)
    (tmp_path / "model").mkdir()
    train_summarizer(tmp_path / "model", data, "pointer_generator")
    model = fairseq_mm.from_pretrained(tmp_path / "model", device="cpu")
    transcripts = ["the dog runs", "a zebra sees a quagga and an okapi", "one gnu runs"]
    options = {"sampling": True, "seed": 2, "max_len_b": 30}
    alone = [model.generate(text, **options)[0].line for text in transcripts]
    together = model.generate(transcripts, indices=[0, 0, 0], **options)
    assert [best.line for best, *_ in together] == alone
    assert any("<unk-" in line for line in alone)
