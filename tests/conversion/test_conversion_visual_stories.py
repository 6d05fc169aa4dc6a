"""Models in the layouts of GLAC Net and Transtory-XL, converted: the logits of given words are
those of the released equations, sentence by sentence."""

import pickle
from pathlib import Path

import pytest
import torch
import torchvision
from PIL import Image
from toy_convert import convert, message
from toy_released_visual_stories import SIGNS, D, model_of, random_weights, write_released

import fairseq_mm
from fairseq_mm.cli.main import main
from fairseq_mm.inference.checkpoint import load_models

WORDS = [*"we went to the beach . dog ran !".split(), "a b", "it"]  # noqa: SIM905
STORY = [
    "we went to the beach .",
    "the dog ran !",
    "it ran to the zebra .",
    "we ran",
    "the beach .",
]
LONGEST = 15  # tokens of a generated sentence
ARCHITECTURES = ("glac", "glac_decoder_attention", "transtory_decoder", "transtory_xl")


def theirs_of(sentence):
    every = [*SIGNS, *WORDS]
    return [every.index(x) if x in every else 3 for x in sentence.split()]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@torch.no_grad()
def test_logits_are_those_of_the_released_equations(arch, tmp_path, capsys):
    encoder, decoder = model_of(arch, len(SIGNS) + len(WORDS))
    source = write_released(tmp_path / "models", encoder, decoder, WORDS)
    assert convert(source, tmp_path / "out") == 0
    out = capsys.readouterr().out
    assert f"--arch {arch}," in out
    loaded = load_models(tmp_path / "out", device="cpu")
    model, dictionary = loaded.models[0], loaded.dictionary
    assert dictionary.symbols[4:] == [x for x in WORDS if " " not in x] + ["<sent>"]
    features = torch.randn(5, D, generator=torch.Generator().manual_seed(5))
    expected = decoder(encoder(features), [[1, *theirs_of(x)] for x in STORY])
    line = " <sent> ".join(STORY)
    tokens = dictionary.encode_line(line, add_if_not_exist=False).long()
    before = torch.cat([tokens[-1:], tokens[:-1]]).unsqueeze(0)
    padding = torch.zeros(1, 5, dtype=torch.bool)
    logits = model(features.unsqueeze(0), padding, before)[0][0]
    expected = torch.cat(expected)
    assert len(logits) == len(expected)
    known = [(i, dictionary.index(x)) for i, x in enumerate([*SIGNS, *WORDS]) if " " not in x]
    for row, column in known[4:]:
        torch.testing.assert_close(logits[:, column], expected[:, row], atol=1e-4, rtol=1e-4)
    for name, row in (("</s>", 2), ("<sent>", 2), ("<pad>", 0), ("<s>", 1), ("<unk>", 3)):
        column = dictionary.index(name)
        torch.testing.assert_close(logits[:, column], expected[:, row], atol=1e-4, rtol=1e-4)
    assert logits.std(dim=0).min() > 1e-3  # words depend on what was before


@torch.no_grad()
def test_a_search_of_the_converted_model_chooses_by_the_released_logits(tmp_path):
    """Greedy stories, step by step, with the ends of sentences where they are allowed."""
    encoder, decoder = model_of("glac", len(SIGNS) + len(WORDS))
    source = write_released(tmp_path / "models", encoder, decoder, WORDS)
    assert convert(source, tmp_path / "out") == 0
    loaded = load_models(tmp_path / "out", device="cpu")
    task, model = loaded.task, loaded.models[0]
    features = torch.randn(5, D, generator=torch.Generator().manual_seed(6))
    generator = fairseq_mm.from_pretrained(tmp_path / "out", device="cpu")
    config = generator.config("greedy", max_words_per_sentence=LONGEST)
    generator = task.generator_for([model], config)
    padding = torch.zeros(1, 5, dtype=torch.bool)
    sample = {"id": torch.tensor([0]), "net_input": {}}
    sample["net_input"] = {"features": features.unsqueeze(0), "padding_mask": padding}
    sample["net_input"]["prev_output_tokens"] = torch.tensor([[2]])
    (hypotheses,) = task.inference_step(generator, [model], sample)
    found = task.target_dictionary.string(hypotheses[0]["tokens"]).split(" <sent> ")
    with torch.no_grad():
        vectors = encoder(features)
        told = [[1] for _ in range(5)]
        for i in range(5):
            while len(told[i]) <= LONGEST:
                logits = decoder(vectors, [x[:] for x in told[: i + 1]])[i][-1].clone()
                # never generated, among them the word that no text can have
                logits[[0, 1, 3, len(SIGNS) + WORDS.index("a b")]] = -torch.inf
                logits[2] = -torch.inf if len(told[i]) == 1 else logits[2]
                word = int(logits.argmax())
                if word == 2:
                    break
                told[i].append(word)
    every = [*SIGNS, *WORDS]
    assert found == [" ".join(every[x] for x in words[1:]) for words in told]


def test_the_network_becomes_a_file_and_images_become_a_story(tmp_path, capsys):
    encoder, decoder = model_of("glac", len(SIGNS) + len(WORDS), feature_dim=512)
    network = random_weights(torchvision.models.resnet18())
    encoder.cnn.resnet = torch.nn.Sequential(*list(network.children())[:-1])
    source = write_released(tmp_path / "models", encoder, decoder, WORDS)
    assert convert(source, tmp_path / "out") == 0
    assert "--model resnet18 --weights" in capsys.readouterr().out
    saved = torch.load(tmp_path / "out" / "cnn.pt")
    ours = network.state_dict()
    assert {*ours} - {*saved} == {"fc.weight", "fc.bias"}
    assert all(torch.equal(saved[name], ours[name].float()) for name in saved)
    images = []
    for i in range(5):
        images.append(str(tmp_path / f"{i}.png"))
        Image.new("RGB", (40, 30), (40 * i, 90, 200 - 30 * i)).save(images[-1])
    story = ["tell", *images, "--checkpoint", str(tmp_path / "out"), "--preset", "paper"]
    assert main([*story, "--max-words-per-sentence", "4"]) == 0
    assert len(capsys.readouterr().out.strip().split("\n")) == 5


class TestBadInput:
    @pytest.fixture
    def source(self, tmp_path):
        encoder, decoder = model_of("glac", len(SIGNS) + len(WORDS))
        return write_released(tmp_path / "models", encoder, decoder, WORDS)

    def test_files_beside_it_are_named(self, source, tmp_path, capsys):
        (source.parent / "vocab.pkl").unlink()
        assert "vocab.pkl: is no pickle" in message(capsys, source, tmp_path / "out")
        (source.parent / "decoder-7.pkl").rename(source.parent / "decoder-8.pkl")
        assert "decoder-7.pkl: cannot be read (No such" in message(capsys, source, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_another_vocabulary_or_decoder_is_refused(self, source, tmp_path, capsys):
        other = model_of("glac", len(SIGNS) + 4)
        theirs = write_released(tmp_path / "other", *other, WORDS[:4])
        vocabulary = theirs.parent / "vocab.pkl"
        error = message(capsys, source, tmp_path / "out", "--vocabulary", vocabulary)
        assert "that the model was trained with (8 words are not numbered" in error

    def test_what_is_left_over_or_missing_is_named(self, source, tmp_path, capsys):
        state = torch.load(source)
        torch.save({**state, "cnn.non_local.theta.weight": torch.zeros(2, 2)}, source)
        error = message(capsys, source, tmp_path / "out")
        assert "has no place for encoder.cnn.non_local.theta.weight" in error
        del state["bn.bias"]
        torch.save(state, source)
        error = message(capsys, source, tmp_path / "out")
        assert "it lacks encoder.glocal_norm.bias." in error

    def test_a_pickle_that_runs_something_is_not_run(self, source, tmp_path, capsys):
        class Harmful:
            def __reduce__(self):
                return Path.touch, (tmp_path / "ran",)

        (source.parent / "vocab.pkl").write_bytes(pickle.dumps(Harmful()))
        assert "is no pickle that can be read safely" in message(capsys, source, tmp_path / "out")
        assert not (tmp_path / "ran").exists()
