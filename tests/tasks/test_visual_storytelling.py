"""The task of visual stories under fairseq's own commands, and its constraints in every search."""

import json
import re
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from toy_data import (
    WORDS,
    build_model,
    make_dictionary,
    make_visual_stories_folder,
    run_fairseq,
    write_store,
    write_visual_story_split,
)

from fairseq_mm.data.story_text import split_sentences
from fairseq_mm.errors import UserError
from fairseq_mm.generation.constraints import StoryConstraints
from fairseq_mm.metrics.cider import CiderD
from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize
from fairseq_mm.tasks.visual_storytelling import (
    VisualStorytellingConfig,
    VisualStorytellingTask,
)

TASK = ("--task", "visual_storytelling")
TRAINING = (
    *TASK,
    *("--arch", "glac_tiny", "--criterion", "cross_entropy", "--optimizer", "adam"),
    *("--lr", "0.01", "--batch-size", "5", "--max-epoch", "2", "--num-workers", "0", "--cpu"),
    *("--no-epoch-checkpoints", "--log-format", "none"),
)
LIMITS = ("--min-words-per-sentence", "2", "--max-words-per-sentence", "4")
AS_LIMITS = {"min_words_per_sentence": 2, "max_words_per_sentence": 4}
EVALUATION = (*LIMITS, "--eval-gen", "--eval-gen-args", '{"beam": 2}')
METRIC = ("--best-checkpoint-metric", "cider", "--maximize-best-checkpoint-metric")


@pytest.fixture
def data(tmp_path):
    return make_visual_stories_folder(tmp_path / "data")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data folder and a checkpoint of two epochs, chosen by its stories' CIDEr."""
    folder = tmp_path_factory.mktemp("stories")
    with pytest.MonkeyPatch.context() as monkeypatch:
        data = make_visual_stories_folder(folder / "data")
        return data, train(monkeypatch, data, folder / "ck", *EVALUATION, *METRIC)


def train(monkeypatch, data, save_dir, *options):
    run_fairseq(monkeypatch, "train", data, *TRAINING, "--save-dir", save_dir, *options)
    return save_dir / "checkpoint_last.pt"


def generate(monkeypatch, capsys, data, checkpoint, *options):
    """Line -> hypotheses."""
    capsys.readouterr()
    arguments = (data, *TASK, "--path", checkpoint, "--gen-subset", "valid", "--cpu", *options)
    run_fairseq(monkeypatch, "generate", *arguments)
    hypotheses = {}
    printed = capsys.readouterr().out
    for line, text in re.findall(r"^H-(\d+)\t\S+\t(.*)$", printed, flags=re.MULTILINE):
        hypotheses.setdefault(int(line), []).append(text)
    return hypotheses


def lengths_of(story):
    return [len(sentence.split()) for sentence in split_sentences(story)]


def test_stories_are_drawn_from_command_lines_seeds(monkeypatch, capsys, trained):
    options = ("--sampling", "--beam", "2", "--nbest", "2", "--max-tokens", "60", "--seed", "4")
    found = generate(monkeypatch, capsys, *trained, *LIMITS, *options)
    assert sorted(found) == [0, 2, 4, 6, 8]
    task = VisualStorytellingTask.setup_task(config_of(trained[0], **AS_LIMITS))
    [model], _ = checkpoint_utils.load_model_ensemble([str(trained[1])], task=task)
    generator = task.build_generator([model], Namespace(sampling=True, beam=2), seed=4)
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    for i in range(5):
        [stories] = task.inference_step(generator, [model], dataset.collater([dataset[i]]))
        texts = [task.dictionary.string(story["tokens"]) for story in stories]
        assert texts == found[dataset[i]["id"]]
        assert all(2 <= length <= 4 for text in texts for length in lengths_of(text))


def test_validation_scores_whole_stories_without_separators(monkeypatch, capsys, trained):
    data, checkpoint = trained
    cider = torch.load(checkpoint)["extra_state"]["val_loss"]
    stories = generate(monkeypatch, capsys, data, checkpoint, *LIMITS, "--beam", "2")
    lines = (data / "valid.references.jsonl").read_text().splitlines()
    references = [[ptb_tokenize(x) for x in json.loads(line)["references"]] for line in lines]
    texts = [ptb_tokenize(stories[i][0].replace("<sent> ", "")) for i in sorted(stories)]
    scorer = CiderD(references)
    assert cider == pytest.approx(sum(map(scorer.score_item, texts, range(5))) / 5, abs=1e-4)


def generator_of(args=None, *, num_models=1, prefix_words=None, constraints=None, seed=None):
    """A task without a folder, its models and a generator."""
    task = VisualStorytellingTask.from_provenance([*WORDS, "<sent>"], {}, 5)
    task.cfg.prefix_words = prefix_words
    models = [build_model("glac_tiny", task) for _ in range(num_models)]
    for number, model in enumerate(models):
        torch.manual_seed(number)
        for weight in model.parameters():  # far from equal probabilities
            weight.data += torch.randn_like(weight)
    args = Namespace(**{"beam": 2, **(args or {})})
    return task, models, task.build_generator(models, args, constraints=constraints, seed=seed)


def samples_of(items, size):
    """Batches of stories, each with its own images."""
    for start in range(0, len(items), size):
        chosen = items[start : start + size]
        features = [torch.randn(5, 5, generator=torch.Generator().manual_seed(i)) for i in chosen]
        net_input = {
            "features": torch.stack(features),
            "padding_mask": torch.tensor([[i % 3 == k for k in range(5)] for i in chosen]),
        }
        yield {"id": torch.tensor(chosen), "net_input": net_input}


def tell(
    args, *, items=(4, 0, 7, 12, 3), size=4, prefix=None, limits=(2, 4), constraints=None, **options
):
    """Of each item the stories as text."""
    constraints = constraints or constraints_of(*limits)
    task, models, generator = generator_of(args, constraints=constraints, **options)
    found = {}
    for sample in samples_of(items, size):
        given = None if prefix is None else prefix.expand(len(sample["id"]), -1)
        generated = task.inference_step(generator, models, sample, given)
        for item, stories in zip(sample["id"].tolist(), generated):
            found[item] = [task.dictionary.string(story["tokens"]) for story in stories]
    return found


def constraints_of(shortest=2, longest=4, **options):
    limits = {"min_words_per_sentence": shortest, "max_words_per_sentence": longest}
    return StoryConstraints(make_dictionary(separator=True), **limits, **options)


@pytest.mark.parametrize("num_models", [1, 2])
@pytest.mark.parametrize(
    "args",
    [
        {"beam": 1},
        {"beam": 3},
        {"beam": 2, "diversity_rate": 0.5},
        {"beam": 1, "sampling": True},
        {"beam": 3, "sampling": True, "sampling_topk": 5},
        {"beam": 2, "sampling": True, "sampling_topp": 0.8},
        {"beam": 2, "sampling": True, "typical_p": 0.5},
    ],
)
def test_stories_have_five_sentences_within_limits_in_any_batch(args, num_models):
    together, alone = (tell(args, size=size, num_models=num_models) for size in (4, 1))
    assert together == alone
    assert len(together) == 5
    for stories in together.values():
        assert len(stories) == args["beam"]
        for story in stories:
            lengths = lengths_of(story)
            assert len(lengths) == 5
            assert all(2 <= length <= 4 for length in lengths)
        if set(args) == {"beam"}:
            assert len(set(stories)) == len(stories)


def test_constraints_change_what_is_generated():
    plain = tell({"beam": 3})
    for constraints in (constraints_of(repetition_penalty=5.0), constraints_of(no_repeat_ngram=1)):
        found = tell({"beam": 3}, constraints=constraints)
        assert found != plain
        assert all(len(lengths_of(story)) == 5 for stories in found.values() for story in stories)
    for stories in found.values():
        words = stories[0].replace("<sent> ", "").split()
        assert len(words) == len(set(words))
    of_args = generator_of({"no_repeat_ngram_size": 2})[2]
    assert of_args.search.constraints.no_repeat_ngram == 2
    assert of_args.repeat_ngram_blocker is None


@pytest.mark.parametrize("args", [{"beam": 3}, {"beam": 2, "sampling": True}])
def test_stories_begin_with_given_words(args):
    prefix = "the big dog sits on <sent> a"
    tokens = torch.tensor([make_dictionary(separator=True).index(x) for x in prefix.split()])
    found = tell(args, prefix_words=prefix)
    assert found == tell(args, prefix=tokens, size=1)
    for stories in found.values():
        assert len(stories) == args["beam"]
        for story in stories:
            assert story.startswith(f"{prefix} ")
            lengths = lengths_of(story)
            assert lengths[0] == 5  # one more than allowed
            assert len(lengths) == 5
            assert all(2 <= length <= 4 for length in lengths[1:])


def test_given_beginnings_may_be_of_different_lengths():
    constraints = constraints_of(3, 3)
    task, models, generator = generator_of(constraints=constraints)
    [sample] = samples_of([4, 6], 2)
    prefix = torch.tensor([[5, 6, 7, 8, 9, 20, 4], [5, 6, 1, 1, 1, 1, 1]])
    found = task.inference_step(generator, models, sample, prefix)
    texts = [task.dictionary.string(stories[0]["tokens"]) for stories in found]
    assert [lengths_of(text) for text in texts] == [[5, 3, 3, 3, 3], [3, 3, 3, 3, 3]]


@pytest.mark.parametrize(
    "prefix", ["a <sent> <sent> big", "<sent> a", "a <sent> " * 5 + "a", "a </s>"]
)
def test_given_words_that_begin_no_story_are_refused(prefix):
    expected = "have words alone" if "</s>" in prefix else "begin a story of 5 sentences"
    with pytest.raises(UserError, match=rf"--prefix-words .*: must {expected}"):
        tell({}, prefix_words=prefix)


def test_scores_of_a_story_are_those_of_its_words_under_the_rules():
    constraints = constraints_of(1, 4, repetition_penalty=5.0)
    task, [model], generator = generator_of({"sampling": True}, constraints=constraints)
    [sample] = samples_of([4, 0, 7], 3)
    for row, stories in enumerate(task.inference_step(generator, [model], sample)):
        inputs = {key: x[row : row + 1] for key, x in sample["net_input"].items()}
        for story in stories:
            tokens, scores = story["tokens"], story["positional_scores"]
            torch.testing.assert_close(scores.mean(), story["score"])
            given = torch.cat([torch.tensor([2]), tokens[:-1]])[None]
            with torch.no_grad():
                lprobs = model(**inputs, prev_output_tokens=given)[0].log_softmax(dim=2)[0]
            lprobs[:, [0, 1, 3]] = -torch.inf  # <s>, padding and <unk> are not generated
            for step, token in enumerate(tokens.tolist()):
                constraints.apply(lprobs[step], given[:, : step + 1])
                torch.testing.assert_close(scores[step], lprobs[step, token], atol=1e-4, rtol=1e-4)


def test_text_that_is_scored_has_no_separators():
    task, models, generator = generator_of()
    [sample] = samples_of([3], 1)
    [stories] = task.inference_step(generator, models, sample)
    tokens = stories[0]["tokens"]
    words = task.dictionary.string(tokens).split()
    assert task.decode_hypothesis(tokens, "valid", 0).split() == [
        word for word in words if word != "<sent>"
    ]
    assert (task.rows_per_image, task.separator_index) == (1, 20)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"match_source_len": True}, "--match-source-len: the model reads no source text"),
        ({"min_len": 30}, "--min-len 30: the length of stories is set sentence by sentence"),
    ],
)
def test_searches_that_cannot_be_are_refused(args, message):
    with pytest.raises(UserError, match=message):
        generator_of(args)


def test_models_with_too_few_positions_are_refused():
    task, models, _ = generator_of()
    models[0].max_decoder_positions = lambda: 200
    with pytest.raises(UserError, match=r"up to 50 words have up to 255 .* for 200: .* 39 or less"):
        task.build_generator(models, Namespace())
    generator = task.build_generator(models, Namespace(), constraints=constraints_of(1, 39))
    [sample] = samples_of([0], 1)
    with pytest.raises(UserError, match="have up to 201 tokens"):
        task.inference_step(generator, models, sample, torch.full((1, 40), 5))


def test_missing_images_are_padding_in_their_place(data, tmp_path):
    (data / "missing_images.txt").write_text("valid1_3\nvalid1_0\nvalid4_4\nnobody\n")
    keys = [f"valid{album}_{i}" for album in range(5) for i in range(5)]
    write_store(tmp_path / "two.h5", [key for key in keys if key != "valid4_4"], rows=2)
    task = VisualStorytellingTask.setup_task(config_of(data, features=str(tmp_path / "two.h5")))
    assert task.rows_per_image == 2
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    batch = dataset.collater([dataset[0], dataset[1], dataset[4]])
    expected = np.zeros((3, 10), dtype=bool)
    expected[1, [0, 1, 6, 7]] = True
    expected[2, [8, 9]] = True
    assert batch["net_input"]["padding_mask"].tolist() == expected.tolist()
    features = batch["net_input"]["features"]
    assert features[torch.from_numpy(expected)].eq(0).all()
    assert np.array_equal(features[1, 2:4], task.features.read("valid1_1"))
    assert np.array_equal(features[2, :2], task.features.read("valid4_0"))
    # the longest line of a sequence and ten regions, missing or not
    sizes = dataset.target.sizes
    assert dataset.num_tokens_vec(np.arange(5)).tolist() == (sizes[[0, 2, 4, 6, 8]] + 10).tolist()


def config_of(data, **options):
    return VisualStorytellingConfig(data=str(data), seed=1, **options)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def load(data, split="valid", **options):
    VisualStorytellingTask.setup_task(config_of(data, **options)).load_dataset(split)


def test_story_of_which_every_image_is_missing_is_named(data):
    (data / "missing_images.txt").write_text("".join(f"valid1_{i}\n" for i in range(5)))
    with pytest.raises(
        UserError, match=r"valid\.bin: line 3: must have 5 images, .*5 of them missi"
    ):
        load(data)
    edit(data / "valid.visual_ids", "valid0_3\t", "")
    with pytest.raises(UserError, match=r"valid\.bin: line 1: must have 5 images, .* has 4 images"):
        load(data)


def test_image_that_is_neither_in_the_store_nor_missing_is_named(data):
    edit(data / "valid.visual_ids", "valid1_3", "other1_3")
    with pytest.raises(UserError, match=r"features\.h5: no features for 'other1_3'"):
        load(data)
    (data / "missing_images.txt").write_text("other1_3\n")
    load(data)


@pytest.mark.parametrize(
    ("story", "lengths"),
    [
        ("a <sent> a <sent> a <sent> a", "1, 1, 1, 1"),
        ("a <sent> " * 5 + "a", "1, 1, 1, 1, 1, 1"),
        ("a <sent> a <sent> <sent> a <sent> a", "1, 1, 0, 1, 1"),
        ("a <sent> a <sent> a <sent> a <sent>", "1, 1, 1, 1, 0"),
    ],
)
def test_line_that_is_no_story_of_five_sentences_is_named(data, story, lengths):
    keys = "\t".join(f"valid0_{i}" for i in range(5))
    lines = [(keys, "a <sent> a <sent> a <sent> a <sent> a"), (keys, story)]
    write_visual_story_split(data, "valid", lines, make_dictionary(separator=True))
    with pytest.raises(UserError, match=rf"line 2: .* 5 sentences .* of {lengths} words\.$"):
        load(data)


def test_images_of_different_numbers_of_rows_are_named(data, tmp_path):
    write_store(tmp_path / "grid.h5", ["x", "y"], rows=4)
    paths = f"{data / 'features.h5'}:{tmp_path / 'grid.h5'}"
    with pytest.raises(
        UserError, match=r"same number of regions, .*, but 'train0_0' has 1, 'x' has 4\.$"
    ):
        load(data, features=paths)


def test_grids_are_refused_by_models_of_pooled_features(data, tmp_path, trained):
    keys = sorted(set((data / "valid.visual_ids").read_text().split()))
    write_store(tmp_path / "grid.h5", keys, rows=4)
    task = VisualStorytellingTask.setup_task(config_of(data, features=str(tmp_path / "grid.h5")))
    with pytest.raises(UserError, match=r"1 regions of each image, but the .* has 4"):
        checkpoint_utils.load_model_ensemble([str(trained[1])], task=task)
