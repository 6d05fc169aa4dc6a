"""Models of text load from wherever they lie, and refusals name the file."""

import shutil

import pytest
import torch
from fairseq_mm.inference.text_models import load_text_models
from toy_story_models import make_story_folder, train_stories
from toy_text_models import SOURCE_WORDS, STORY_WORDS, save_text_model

import fairseq_mm
from fairseq_mm.errors import UserError
from fairseq_mm.models._provenance import STATE_KEY, words_of


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    return save_text_model(tmp_path_factory.mktemp("story") / "checkpoint_best.pt")


def test_a_story_model_brings_its_dictionaries_and_weights(story, tmp_path):
    shutil.copy(story, tmp_path)
    models = load_text_models(tmp_path, device="cpu")
    assert models.files == [str(tmp_path / "checkpoint_best.pt")]
    assert models.architectures == ["conv_story_tiny"]
    assert words_of(models.dictionary) == list(dict.fromkeys(STORY_WORDS))
    assert words_of(models.source_dictionary) == SOURCE_WORDS
    assert not models.are_language_models
    assert not models.models[0].training
    saved = torch.load(story)["model"]
    for name, weights in models.models[0].state_dict().items():
        assert torch.equal(weights, saved[name])


def test_a_language_model_reads_no_text(tmp_path):
    models = load_text_models(save_text_model(tmp_path / "lm.pt", "gcnn_lm_tiny"), device="cpu")
    assert models.are_language_models
    assert models.source_dictionary is None


def test_an_ensemble_is_a_list_or_joined_names(story, tmp_path):
    other = save_text_model(tmp_path / "other.pt", seed=9)
    by_name = load_text_models(f"{story}:{other}", device="cpu")
    by_list = load_text_models([story.parent, other], device="cpu")
    assert by_name.files == by_list.files == [str(story), str(other)]
    assert len(by_list.models) == 2


def test_checkpoints_that_do_not_fit_are_named(story, tmp_path):
    words = save_text_model(tmp_path / "words.pt", words=["a", "b"])
    prompts = save_text_model(tmp_path / "prompts.pt", source_words=["a", "b"])
    lm = save_text_model(tmp_path / "lm.pt", "gcnn_lm_tiny")
    bos = save_text_model(tmp_path / "bos.pt", "gcnn_lm_tiny", task_options={"add_bos_token": True})
    state = torch.load(story)
    del state["model"][STATE_KEY]
    torch.save(state, tmp_path / "foreign.pt")
    (tmp_path / "text.pt").write_text("no checkpoint")
    for path, message in (
        ([story, words], r"words\.pt: has another dictionary \(2 words, fingerprint \w{12}\) than"),
        ([story, prompts], r"prompts\.pt: has another dictionary of the source text than "),
        ([story, lm], r"lm\.pt: has another dictionary of the source text than "),
        (bos, r"bos\.pt: was trained with --add-bos-token, so that texts begin with two signs"),
        (tmp_path / "foreign.pt", r"foreign\.pt: carries no dictionary \(--arch conv_story_tiny"),
        (tmp_path / "text.pt", r"text\.pt: is no fairseq checkpoint that can be loaded safely"),
        (tmp_path / "none.pt", r"none\.pt: no such checkpoint or folder\."),
        (tmp_path, r"has neither checkpoint_best\.pt nor checkpoint_last\.pt"),
        ([], "`path` must name at least one checkpoint, but is empty"),
    ):
        with pytest.raises(UserError, match=message):
            load_text_models(path, device="cpu")
    for device in ("cuda:99", "nowhere"):
        with pytest.raises(UserError, match=f"^device {device}: "):
            load_text_models(story, device=device)


def test_a_model_of_fairseqs_own_carries_no_dictionary(tmp_path):
    """fairseq leaves the options of its older models as they were parsed."""
    data = make_story_folder(tmp_path / "data")
    sizes = "--encoder-embed-dim 4 --decoder-embed-dim 4 --encoder-hidden-size 4"
    sizes += " --decoder-hidden-size 4 --decoder-out-embed-dim 4 --max-epoch 1"
    path = train_stories(data, tmp_path / "lstm", "lstm", sizes)
    with pytest.raises(UserError, match=r"carries no dictionary \(--arch lstm, --task translation"):
        load_text_models(path, device="cpu")


def test_the_checkpoint_decides_what_is_loaded(story, tmp_path):
    lm = save_text_model(tmp_path / "lm.pt", "gcnn_lm_tiny", words=SOURCE_WORDS)
    teller = fairseq_mm.from_pretrained(story, prompt_model=lm, device="cpu")
    assert repr(teller) == f"Storyteller('{story}': stories, cpu)"
    assert len(teller.tell(n=2, max_words=5)) == 2
    writer = fairseq_mm.from_pretrained(lm, device="cpu")
    assert repr(writer) == f"Storyteller('{lm}': stories without prompts, cpu)"
    with pytest.raises(UserError, match="`weights` is for models of images or videos, but"):
        fairseq_mm.from_pretrained(story, weights="vgg.pth", device="cpu")


def test_a_captioner_is_no_model_of_text(tmp_path):
    state = torch.load(save_text_model(tmp_path / "a.pt"))
    state["cfg"]["task"]["_name"] = "multimodal_captioning"
    torch.save(state, tmp_path / "captioner.pt")
    with pytest.raises(UserError, match=r"`prompt_model` is for models .* but `path` is a"):
        fairseq_mm.from_pretrained(tmp_path / "captioner.pt", prompt_model="x", device="cpu")
