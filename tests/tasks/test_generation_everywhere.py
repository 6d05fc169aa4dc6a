"""One way to generate: ``fairseq-generate``, validation, Python and ``fairseq-mm`` write the same
texts with the same scores, by default without ``<unk>``, whatever the batches."""

import json
import math
import re
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, options
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.sequence_generator import EnsembleModel
from toy_data import (
    build_model,
    make_captions_folder,
    make_dictionary,
    make_videos_folder,
    run_fairseq,
    toy_task,
    write_visual_story_split,
)
from toy_story_models import PROMPT_WORDS, STORY_WORDS, dictionary_of, make_story_folder
from toy_text_models import save_text_model
from toy_video_summarizers import write_video_summarizer
from toy_visual_stories import save_story_model, story_dictionary, write_story_split

import fairseq_mm
from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.records import open_split
from fairseq_mm.errors import UserError
from fairseq_mm.generation import defaults
from fairseq_mm.tasks._generated_text import GeneratedTextScores

FILLERS = ("madeupword0000", "madeupword0001")
FAST = ("--cpu", "--num-workers", "0", "--required-batch-size-multiple", "1")
# one name of an option everywhere; with dashes in commands
MODES = {
    "beam": {},
    "sampling": {"beam": 1, "sampling": True, "sampling_topk": 7, "temperature": 1.5, "seed": 5},
}
OTHER_CASES = (("beam", True), ("sampling", False))
# those that validation reads of the task's own options
OF_TASK = ("seed", "allow_unk", "max_words_per_sentence")


def flags(options):
    for name, value in options.items():
        yield f"--{name.replace('_', '-')}"
        if value is not True:
            yield str(value)


def pad_dictionary(*paths):
    for path in paths:
        with open(path, "a") as file:
            file.writelines(f"{word} 0\n" for word in FILLERS)


def padded(dictionary):
    for word in FILLERS:
        dictionary.add_symbol(word)
    return dictionary


def change_task(path, **values):
    """Options of the task that a checkpoint was trained with."""
    state = torch.load(path)
    state["cfg"]["task"].update(values)
    torch.save(state, path)


def save_captioner(path, data, *, seed):
    """A captioner with random weights, as fairseq-train saves it."""
    fairseq_mm.register()
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    task = toy_task(target_dictionary=padded(make_dictionary()))
    model = build_model("m_rnn_tiny", task)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.4)
    cfg = Namespace()
    ARCH_CONFIG_REGISTRY["m_rnn_tiny"](cfg)
    fields = ARCH_MODEL_REGISTRY["m_rnn_tiny"].__dataclass.__dataclass_fields__
    values = {**{name: field.default for name, field in fields.items()}, **vars(cfg)}
    state = {
        "args": None,
        "cfg": {
            "task": {"_name": "multimodal_captioning"},
            "model": {**values, "_name": "m_rnn_tiny"},
        },
        "model": model.state_dict(),
        "optimizer_history": [{"criterion_name": "CrossEntropy", "best_loss": None}],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }
    torch.save(state, path)
    return path


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captions")
    data = make_captions_folder(folder / "data")
    pad_dictionary(data / "dict.txt")
    paths = [save_captioner(folder / f"{seed}.pt", data, seed=seed) for seed in (1, 2)]
    return Namespace(
        task="multimodal_captioning",
        data=data,
        path=paths[0],
        paths=paths,
        options={},
        command=("caption", data, "--split", "valid"),
    )


@pytest.fixture(scope="module")
def visual_stories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("visual_stories")
    data = write_story_split(folder / "data", missing="p2_1")
    words = story_dictionary().symbols[4:-1]
    path = save_story_model(folder / "model.pt", words=[*words, *FILLERS])
    dictionary = story_dictionary([*words, *FILLERS])
    # the separator is the last word in the folder as well
    dictionary.save(str(data / "dict.txt"))
    rebinarise(data, dictionary)
    return Namespace(
        task="visual_storytelling",
        data=data,
        path=path,
        options={"max_words_per_sentence": 5},
        command=("tell", data, "--split", "valid"),
    )


def rebinarise(data, dictionary):
    ids = (data / "valid.visual_ids").read_text().splitlines()
    stories = (data / "text" / "valid.txt").read_text().splitlines()
    write_visual_story_split(data, "valid", list(zip(ids, stories)), dictionary)


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stories")
    data = make_story_folder(folder / "data", valid=5)
    pad_dictionary(data / "dict.wp_source.txt", data / "dict.wp_target.txt")
    path = save_text_model(
        folder / "model.pt",
        words=padded(dictionary_of(STORY_WORDS)).symbols[4:],
        source_words=padded(dictionary_of(PROMPT_WORDS)).symbols[4:],
    )
    return Namespace(
        task="hierarchical_story",
        data=data,
        path=path,
        options={"beam": 5, "min_len": 4, "max_len_b": 9},
        command=("tell", "--prompts", data / "text" / "valid.wp_source"),
    )


@pytest.fixture(scope="module")
def summaries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("summaries")
    data = make_videos_folder(folder / "data", indexed_oov=2)
    pad_dictionary(data / "dict.tran.txt", data / "dict.desc.txt")
    path = write_video_summarizer(folder / "model.pt", "mffg_rnn_tiny", data)
    return Namespace(
        task="video_summarization",
        data=data,
        path=path,
        options={},
        command=("summarize", data, "--split", "valid"),
    )


@pytest.fixture
def prefer_what_is_no_word(monkeypatch):
    """Every model gives most probability to <unk>, <s>, fillers and <unk-1>, which no transcript
    has."""
    original = EnsembleModel.forward_decoder

    def prefer(dictionary):
        indices = [dictionary.unk(), dictionary.bos()]
        indices += [dictionary.index(word) for word in (*FILLERS, "<unk-1>")]

        def forward_decoder(self, *args, **kwargs):
            lprobs, attention = original(self, *args, **kwargs)
            lprobs[:, indices] = lprobs[:, indices] / 100
            return lprobs.log_softmax(dim=1), attention

        monkeypatch.setattr(EnsembleModel, "forward_decoder", forward_decoder)

    return prefer


@pytest.fixture
def by_fairseq_generate(monkeypatch, capsys):
    """Line -> text and score."""

    def run(case, *arguments, path=None, **options):
        capsys.readouterr()
        command = (case.data, "--task", case.task, "--path", path or case.path, *FAST)
        run_fairseq(
            *(monkeypatch, "generate", *command, "--gen-subset", "valid"),
            *("--batch-size", 3, *flags(options), *arguments),
        )
        found = re.findall(r"^D-(\d+)\t(\S+)\t?(.*)$", capsys.readouterr().out, re.MULTILINE)
        return {int(line): (text, float(bits) * math.log(2)) for line, bits, text in found}

    return run


@pytest.fixture
def by_validation(monkeypatch):
    """The same, as fairseq-validate loads the checkpoint, and as training validates."""

    def run(case, **options):
        texts, scores = {}, {}
        sums = GeneratedTextScores.sums

        def recorded(self, hypotheses):
            texts.update(hypotheses)
            return sums(self, hypotheses)

        monkeypatch.setattr(GeneratedTextScores, "sums", recorded)
        values = {name: options.pop(name) for name in OF_TASK if name in options}
        values.update(data=str(case.data), eval_gen=True, eval_gen_args=json.dumps(options))
        change_task(case.path, **{"seed": 1, "allow_unk": False, **values})
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(case.path)])
        inference_step = task.inference_step

        def scored(generator, models, sample, *args):
            found = inference_step(generator, models, sample, *args)
            for line, (best, *_) in zip(sample["id"].tolist(), found):
                scores[line] = float(best["score"])
            return found

        monkeypatch.setattr(task, "inference_step", scored)
        task.load_dataset("valid", combine=False, epoch=1)
        batches = task.get_batch_iterator(task.dataset("valid"), max_sentences=4)
        criterion = CrossEntropyCriterion(task, sentence_avg=False)
        for sample in batches.next_epoch_itr(shuffle=False):
            task.valid_step(sample, model.eval(), criterion)
        return {line: (texts[line], scores[line]) for line in texts}

    return run


def line_of(case, hypothesis):
    """As fairseq-generate prints it: detokenised where the task says how."""
    return hypothesis.text if case.task == "video_summarization" else hypothesis.line


def in_python(case, *, path=None, batch_size=None, **options):
    """The same, by the engine."""
    model = fairseq_mm.from_pretrained(path or case.path, device="cpu")
    lines, inputs = inputs_of(case)
    found = model.generate(inputs, indices=lines, batch_size=batch_size, **options)
    return {line: (line_of(case, best), best.score) for line, (best, *_) in zip(lines, found)}


def inputs_of(case):
    """First line and input of each item of the split."""
    if case.task == "hierarchical_story":
        prompts = (case.data / "text" / "valid.wp_source").read_text().splitlines()
        return range(len(prompts)), prompts
    firsts, store = read_features(case)
    keys = list(firsts.values())
    if case.task == "multimodal_captioning":
        return list(firsts), [store.read(key) for key in keys]
    if case.task == "visual_storytelling":
        sequences = [key.split("\t") for key in keys]
        return list(firsts), [[store.read(x) if x in store else None for x in s] for s in sequences]
    written = (case.data / "valid.transcripts.jsonl").read_text().splitlines()
    transcripts = [json.loads(line)["transcript"] for line in written]
    return list(firsts), [
        {"video": store.read(key), "transcript": text} for key, text in zip(keys, transcripts)
    ]


def read_features(case):
    """First line -> key of each item of the split, and the store."""
    split = open_split(case.data, "valid")
    firsts = {i: split.keys[i] for i, first in enumerate(split.first) if first}
    return firsts, FeatureStore(str(case.data / "features.h5"))


@pytest.fixture
def by_command(capsys):
    """The same, by the records that a command of fairseq-mm writes."""

    def run(case, *, path=None, **options):
        capsys.readouterr()
        command = (*case.command, "--checkpoint", path or case.path, *flags(options))
        assert main([*map(str, command), "--device", "cpu", "--jsonl"]) == 0
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        lines, _ = inputs_of(case)
        assert len(found) == len(lines)
        return {
            line: (entry.get("tokens", entry["hypothesis"]), entry["score"])
            for line, entry in zip(lines, found)
        }

    return run


def assert_same(expected, *others, abs=5e-4):  # scores are printed with 4 decimals
    for other in others:
        assert sorted(other) == sorted(expected)
        for line, (text, score) in other.items():
            assert (line, text) == (line, expected[line][0])
            assert score == pytest.approx(expected[line][1], abs=abs)


@pytest.mark.parametrize(
    ("mode", "allow_unk"),
    [
        *(("beam", False), ("sampling", True)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHER_CASES),
    ],
)
@pytest.mark.parametrize("name", ["captions", "visual_stories", "stories", "summaries"])
def test_texts_and_scores_are_the_same_everywhere(
    request,
    prefer_what_is_no_word,
    by_fairseq_generate,
    by_validation,
    by_command,
    name,
    mode,
    allow_unk,
):
    case = request.getfixturevalue(name)
    prefer_what_is_no_word(fairseq_mm.from_pretrained(case.path, device="cpu").dictionary)
    options = {**case.options, **MODES[mode], **({"allow_unk": True} if allow_unk else {})}
    expected = by_fairseq_generate(case, **options)
    assert_same(expected, in_python(case, **options), by_command(case, **options))
    if name != "stories":  # which are not validated by generated text
        # the separators of visual stories are not scored
        bare = {line: (text.replace(" <sent> ", " "), x) for line, (text, x) in expected.items()}
        assert_same(bare, by_validation(case, **options))
    words = {word for text, _ in expected.values() for word in text.split()}
    assert ("<unk>" in words) == allow_unk
    assert not words.intersection((*FILLERS, "<unk-0>", "<unk-1>"))
    if name == "captions":
        assert len(expected) == 7
        assert mode == "beam" or len({text for text, _ in expected.values()}) > 4


@pytest.mark.parametrize("mode", MODES)
def test_captions_of_an_ensemble(captions, by_fairseq_generate, by_command, mode):
    path, options = ":".join(map(str, captions.paths)), MODES[mode]
    expected = by_fairseq_generate(captions, path=path, **options)
    assert_same(
        expected,
        in_python(captions, path=path, **options),
        by_command(captions, path=path, **options),
    )
    assert expected != in_python(captions, **options)


def test_a_forced_prefix_keeps_its_unk(captions, by_fairseq_generate):
    """--prefix-size takes the references' first tokens; some of them are made unknown here."""
    path, dictionary = captions.data / "valid.bin", make_dictionary()
    content, tokens = path.read_bytes(), np.fromfile(path, dtype=np.uint16)
    first = by_fairseq_generate(captions, "--prefix-size", 2, "--all-lines")
    unknown = ["a", "the", "dog", "cat"]
    tokens[np.isin(tokens, [dictionary.index(word) for word in unknown])] = dictionary.unk()
    try:
        tokens.tofile(path)
        found = by_fairseq_generate(captions, "--prefix-size", 2, "--all-lines")
    finally:
        path.write_bytes(content)
    assert sum("<unk>" in text.split()[:2] for text, _ in found.values()) > 3
    for line, (text, score) in found.items():
        prefix = first[line][0].split()[:2]
        assert text.split()[:2] == ["<unk>" if word in unknown else word for word in prefix]
        assert "<unk>" not in text.split()[2:]
        assert math.isfinite(score)


@pytest.mark.parametrize("parser", ["generation", "interactive_generation"])
@pytest.mark.parametrize(
    ("task", "table"),
    [
        ("multimodal_captioning", defaults.CAPTIONS),
        ("visual_storytelling", defaults.VISUAL_STORIES),
        ("hierarchical_story", defaults.PROMPT_STORIES),
        ("video_summarization", defaults.SUMMARIES),
    ],
)
def test_fairseqs_commands_have_the_defaults_of_the_task(parser, task, table):
    parser = getattr(options, f"get_{parser}_parser")
    named = ["data", "--task", task, "--path", "model.pt"]
    args = options.parse_args_and_arch(parser(), input_args=named)
    assert {name: getattr(args, name) for name in table} == table
    given = ["--beam", "5", "--max-len-b", "200", "--min-len", "1", "--no-repeat-ngram-size", "0"]
    args = options.parse_args_and_arch(parser(), input_args=[*named, *given])
    assert (args.beam, args.max_len_b, args.min_len, args.no_repeat_ngram_size) == (5, 200, 1, 0)


def test_a_penalty_that_favours_unk_needs_that_it_is_allowed(captions, by_fairseq_generate):
    with pytest.raises(UserError, match=r"^--unkpen -2 favours <unk>, .* with --allow-unk only\.$"):
        by_fairseq_generate(captions, "--unkpen", -2)
    expected = by_fairseq_generate(captions)
    assert by_fairseq_generate(captions, "--unkpen", 3) == expected
    found = by_fairseq_generate(captions, "--unkpen", -20, "--allow-unk")
    assert all("<unk>" in text.split() for text, _ in found.values())


def test_the_default_length_of_stories_gives_way_to_a_smaller_limit(stories):
    model = fairseq_mm.from_pretrained(stories.path, device="cpu")
    task, models = model.task, model.models
    table = defaults.PROMPT_STORIES
    for lengths, expected in (
        ({"max_len_b": 9}, 9),
        ({}, 40),  # as many as the model has positions for
        ({"min_len": 12, "max_len_b": 9}, 12),
    ):
        generator = task.build_generator(models, Namespace(**{**table, **lengths}))
        assert generator.min_len == expected
    sample = {"net_input": {"src_tokens": torch.tensor([[5, 2]]), "src_lengths": torch.tensor([2])}}
    with pytest.raises(UserError, match=r"^--min-len 12 is more than --max-len-a 0, --max-len-b 9"):
        task.inference_step(generator, models, sample)


def test_inputs_of_fairseq_interactive_are_counted(stories):
    """Each has draws of its own, though fairseq gives no numbers."""
    model = fairseq_mm.from_pretrained(stories.path, device="cpu")
    task, models = model.task, model.models
    generator = task.build_generator(
        models,
        Namespace(beam=1, sampling=True, temperature=3.0, min_len=9, max_len_b=9),
    )
    net_input = {
        "src_tokens": torch.tensor([[5, 2], [5, 2]]),
        "src_lengths": torch.tensor([2, 2]),
    }
    texts = []
    for _ in range(2):
        found = task.inference_step(generator, models, {"net_input": net_input})
        texts += [tuple(best["tokens"].tolist()) for (best,) in found]
    assert len(set(texts)) == 4
    numbered = {"id": torch.tensor([1, 3]), "net_input": net_input}
    found = task.inference_step(generator, models, numbered)
    assert [tuple(best["tokens"].tolist()) for (best,) in found] == texts[1::2]
