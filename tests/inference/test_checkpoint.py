"""Checkpoints load from wherever they lie, and refusals name the file."""

import hashlib
import shutil

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY
from toy_story_models import make_story_folder, train_stories
from toy_text_models import SOURCE_WORDS, STORY_WORDS, save_text_model
from toy_visual_stories import save_story_model

import fairseq_mm
from fairseq_mm.data.input_files import compute_sha256
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint, load_models
from fairseq_mm.inference.checkpoint_files import checkpoint_file
from fairseq_mm.metrics.result_card import file_hash
from fairseq_mm.models._provenance import STATE_KEY, list_words


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    return save_text_model(tmp_path_factory.mktemp("story") / "checkpoint_best.pt")


def test_a_story_model_brings_its_dictionaries_and_weights(story, tmp_path):
    shutil.copy(story, tmp_path)
    loaded = load_models(tmp_path, device="cpu")
    assert loaded.files == [str(tmp_path / "checkpoint_best.pt")]
    assert loaded.architectures == ["conv_story_tiny"]
    assert list_words(loaded.dictionary) == list(dict.fromkeys(STORY_WORDS))
    assert list_words(loaded.source_dictionary) == SOURCE_WORDS
    assert not loaded.are_language_models
    assert not loaded.models[0].training
    saved = torch.load(story)["model"]
    for name, weights in loaded.models[0].state_dict().items():
        assert torch.equal(weights, saved[name])


def test_an_ensemble_is_a_list_or_joined_names(story, tmp_path):
    other = save_text_model(tmp_path / "other.pt", seed=9)
    by_name = load_models(f"{story}:{other}", device="cpu")
    by_list = load_models([story.parent, other], device="cpu")
    assert by_name.files == by_list.files == [str(story), str(other)]
    assert len(by_list.models) == 2


def test_checkpoints_that_do_not_fit_are_named(story, tmp_path):
    words = save_text_model(tmp_path / "words.pt", words=["a", "b"])
    prompts = save_text_model(tmp_path / "prompts.pt", source_words=["a", "b"])
    lm = save_text_model(tmp_path / "lm.pt", "gcnn_lm_tiny")
    images = save_story_model(tmp_path / "images.pt")
    bos = save_text_model(tmp_path / "bos.pt", "gcnn_lm_tiny", task_options={"add_bos_token": True})
    state = torch.load(story)
    del state["model"][STATE_KEY]
    torch.save(state, tmp_path / "foreign.pt")
    (tmp_path / "text.pt").write_text("no checkpoint")
    (tmp_path / "other.pt").write_text("garbage\n")
    for path, message in (
        ([story, words], r"words\.pt: was trained with other dictionary than"),
        ([story, prompts], r"prompts\.pt: was trained with other source dictionary than "),
        ([story, lm], r"lm\.pt: was trained with other source dictionary than "),
        ([images, story], r"best\.pt: was trained with other task than .*: they are no en"),
        (bos, r"bos\.pt: --add-bos-token is not supported"),
        (tmp_path / "foreign.pt", r"foreign\.pt: carries no dictionary \(--arch conv_story_tiny"),
        (tmp_path / "text.pt", r"text\.pt: cannot be loaded safely"),
        (tmp_path / "other.pt", r"other\.pt: cannot be loaded safely"),
        (tmp_path / "none.pt", r"none\.pt: no such checkpoint or folder\."),
        (tmp_path, r"has neither checkpoint_best\.pt nor checkpoint_last\.pt"),
    ):
        with pytest.raises(UserError, match=message):
            load_models(path, device="cpu")
    for device in ("cuda:99", "nowhere"):
        with pytest.raises(UserError, match=f"^device {device}: "):
            load_models(story, device=device)


def test_a_model_of_fairseqs_own_takes_the_dictionaries_of_its_folder(tmp_path):
    """fairseq leaves the options of its older models as they were parsed."""
    data = make_story_folder(tmp_path / "data")
    sizes = "--encoder-embed-dim 4 --decoder-embed-dim 4 --encoder-hidden-size 4"
    sizes += " --decoder-hidden-size 4 --decoder-out-embed-dim 4 --max-epoch 1"
    path = train_stories(data, tmp_path / "lstm", "lstm", sizes)
    with pytest.raises(UserError, match=r"carries no dictionary \(--arch lstm, --task translation"):
        load_models(path, device="cpu")
    loaded = load_models(path, data=data, device="cpu")
    for found, side in ((loaded.source_dictionary, "source"), (loaded.dictionary, "target")):
        lines = (data / f"dict.wp_{side}.txt").read_text().splitlines()
        assert list_words(found) == [line.split()[0] for line in lines]
    saved = torch.load(path)["model"]
    assert torch.equal(
        loaded.models[0].state_dict()["decoder.fc_out.weight"], saved["decoder.fc_out.weight"]
    )
    with pytest.raises(UserError, match=r"dict\.wp_target\.txt: .*No such file"):
        load_models(path, data=tmp_path, device="cpu")


def test_the_checkpoint_decides_what_is_loaded(story, tmp_path):
    lm = save_text_model(tmp_path / "lm.pt", "gcnn_lm_tiny", words=SOURCE_WORDS)
    model = fairseq_mm.from_pretrained(story, prompt_model=lm, device="cpu")
    assert repr(model) == f"Generator('{story}': stories by conv_story_tiny, cpu)"
    assert len(model.generate(n=2, max_len_b=5)) == 2
    with pytest.raises(UserError, match="`weights` is no option of models that read prompts"):
        fairseq_mm.from_pretrained(story, weights="vgg.pth", device="cpu")
    images = save_story_model(tmp_path / "images.pt")
    with pytest.raises(UserError, match=r"`prompt_model` is no option of .*images\.pt"):
        fairseq_mm.from_pretrained(images, prompt_model=lm, device="cpu")


def test_the_task_says_what_a_checkpoint_is_for(story, tmp_path):
    of_prompts = Checkpoint.open(story)
    of_images = Checkpoint.open(save_story_model(tmp_path / "images.pt"))
    assert of_prompts.command == of_images.command == "tell"
    assert (of_prompts.input_kind, of_prompts.kind) == ("prompts", "prompts")
    assert (of_images.input_kind, of_images.kind) == ("images", "albums")
    assert repr(of_prompts) == f"Checkpoint('{story}': --arch conv_story_tiny, --task translation)"
    of_images.cfg["task"]["_name"] = "sentence_prediction"
    of_others = Checkpoint("others.pt", of_images.state)
    assert of_others.command == of_others.kind == ""


def test_a_checkpoint_of_a_plugin_that_is_not_loaded_is_refused(story, tmp_path, monkeypatch):
    plugin = tmp_path / "their_plugin"
    plugin.mkdir()
    (plugin / "__init__.py").write_text("raise SystemExit('imported')")
    state = torch.load(story)
    state["cfg"]["model"]["_name"] = "their_arch"
    state["cfg"]["task"]["_name"] = "their_task"
    unknown = r"--arch their_arch \(--task their_task\) is not known: load its plugin"
    for folder, message in (
        (str(plugin), rf"a\.pt: {unknown}.* It was trained with --user-dir '{plugin}'\."),
        (None, unknown),
    ):
        state["cfg"]["common"]["user_dir"] = folder
        torch.save(state, tmp_path / "a.pt")
        with pytest.raises(UserError, match=message) as caught:
            fairseq_mm.from_pretrained(tmp_path / "a.pt", device="cpu")
        assert "\n" not in str(caught.value)
    state["cfg"]["model"]["_name"] = "conv_story_tiny"
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(UserError, match=r"--task their_task\) is not known"):
        Checkpoint.open(tmp_path / "a.pt")


def test_a_model_of_a_plugin_without_a_record_names_what_its_author_forgot(story, monkeypatch):
    checkpoint = Checkpoint.open(story)
    checkpoint.has_provenance = False
    with pytest.raises(UserError, match=r"carries no dictionary .*: give the data folder"):
        checkpoint.build_task()
    theirs = type("TheirModel", (), {"__module__": "their_plugin.models"})
    monkeypatch.setitem(ARCH_MODEL_REGISTRY, checkpoint.arch, theirs)
    message = r"build_model must end with .*attach_provenance"
    with pytest.raises(UserError, match=message):
        checkpoint.build_task()


def test_loading_uses_no_random_numbers_of_the_program(story):
    before = torch.get_rng_state()
    fairseq_mm.from_pretrained(story, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_given_kind_is_checked(story):
    generator = fairseq_mm.from_pretrained(story, kind="generator", device="cpu")
    assert type(generator).__name__ == "Generator"
    for kind in ("embedder", "captioner", "any"):
        message = f"`kind` must be 'generator', but is '{kind}' instead"
        with pytest.raises(UserError, match=message):
            fairseq_mm.from_pretrained(story, kind=kind, device="cpu")


def test_a_file_is_hashed_once(story, tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    shutil.copy(story, path)
    digest = Checkpoint.open(path).digest
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    hashed = []
    sha256 = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda *args: hashed.append(args) or sha256(*args))
    assert Checkpoint.open(path).digest == digest
    assert file_hash(str(path))["sha256"][:12] == digest
    assert hashed == []
    with path.open("ab") as file:
        file.write(b"another end")
    assert compute_sha256(path)[:12] != digest


def test_weights_of_an_extractor_beside_a_checkpoint_are_no_model_folder(tmp_path):
    """The weights of Hugging Face's models have the name of the weights of a model folder."""
    for name in ("checkpoint_last.pt", "model.safetensors"):
        (tmp_path / name).write_bytes(b"")
    assert checkpoint_file(str(tmp_path)) == str(tmp_path / "checkpoint_last.pt")
    (tmp_path / "config.json").write_text("{}")
    assert checkpoint_file(str(tmp_path)) == str(tmp_path / "model.safetensors")
    for name in ("checkpoint_last.pt", "config.json"):
        (tmp_path / name).unlink()
    assert checkpoint_file(str(tmp_path)) == str(tmp_path / "model.safetensors")
