"""Every system that is exported to a model folder gives what its checkpoint gives, bit for bit."""

import numpy as np
import pytest
import torch
from golden_files import DATA
from invocations import CHECKPOINT
from systems import EMBEDDING, LANGUAGE_MODEL, STORY, SYSTEMS, WITHOUT_DICTIONARY

pytest.importorskip("safetensors")

TRANSCRIPT = "a man runs on the grass"
OPTIONS = {"beam": 2, "nbest": 2, "max_len_b": 6}


@pytest.fixture(scope="module")
def exported(root, tmp_path_factory):
    """Folder with an exported folder of each system that was asked for."""
    from fairseq_mm.hub.export import export_checkpoint

    folder = tmp_path_factory.mktemp("exported")

    def export(name):
        if not (folder / name).exists():
            export_checkpoint(open_checkpoint(root, name), str(folder / name))
        return folder / name

    return export


def data_of(root, name):
    return root / DATA / SYSTEMS[name].data if name in WITHOUT_DICTIONARY else None


def open_checkpoint(root, name):
    from fairseq_mm.inference.checkpoint import Checkpoint

    path = root / SYSTEMS[name].family / name / CHECKPOINT
    return Checkpoint.open(path, data=data_of(root, name))


def outputs(root, name, path, data=None):
    """Every number that a model gives for fixed inputs."""
    import fairseq_mm

    kind = SYSTEMS[name].kind
    model = fairseq_mm.from_pretrained(path, data=data, device="cpu")
    dim = model.feature_dim if kind == EMBEDDING else model.loaded.feature_dim
    rows = np.random.default_rng(7).normal(size=(10, dim)).astype(np.float32)
    if kind == EMBEDDING:
        words = model.task.target_dictionary.symbols[4:8]
        return [model.embed_texts(words).tobytes(), model.embed_features([rows[:1]]).tobytes()]
    if kind == LANGUAGE_MODEL:
        hypotheses = model.generate(n=2, sampling=True, seed=3, max_len_b=6)
        hypotheses = [hypothesis for several in hypotheses for hypothesis in several]
    elif kind == STORY:
        hypotheses = model.generate("the dragon", **OPTIONS)
    elif SYSTEMS[name].family == "videos":
        video = {"transcript": TRANSCRIPT, **({"video": rows} if dim else {})}
        hypotheses = model.generate(video, **OPTIONS)
    elif SYSTEMS[name].family == "stories":
        per_image = model.processor.rows_per_image
        images = [np.repeat(rows[i : i + 1], per_image, axis=0) for i in range(4)]
        hypotheses = model.generate(
            [images[0], None, *images[1:]], beam=2, max_words_per_sentence=4
        )
    else:
        hypotheses = model.generate(rows[:1], **OPTIONS)
    return [
        (best.text, best.line, best.tokens, best.score, best.positional_scores)
        for best in hypotheses
    ]


# a system of each kind, of each base class, and of fairseq's own
GENERATES = (
    *("m_rnn", "mlbl_b", "transformer_captioner", "vse_gru", "glac", "transtory_xl"),
    *("conv_story_fusion", "story_lstm", "gcnn_lm", "vg_bart", "t5", "pointer_generator", "bart"),
)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_folder_gives_what_its_checkpoint_gives(root, exported, name):
    from fairseq_mm.inference.checkpoint import Checkpoint

    folder = exported(name)
    assert not list(folder.glob("*.pt"))
    before, after = open_checkpoint(root, name), Checkpoint.open(folder)
    assert set(after.weights) == set(before.weights)
    for key, weight in before.weights.items():
        assert after.weights[key].dtype == weight.dtype
        assert torch.equal(after.weights[key], weight), key
    assert after.provenance == before.provenance
    assert after.task_state == before.task_state
    assert after.digest == before.digest
    assert after.kind == before.kind
    assert after.summary() == before.summary()
    for section in ("model", "task"):
        options = {key: x for key, x in before.cfg[section].items() if "/" not in str(x)}
        assert {key: after.cfg[section][key] for key in options} == options
    if name in GENERATES:
        data = data_of(root, name)
        assert outputs(root, name, folder) == outputs(root, name, before.path, data)


def test_a_structured_captioner_of_folders_gives_what_its_checkpoints_give(root, exported):
    import fairseq_mm

    images = [str(root / DATA / "images" / f"valid{i}.jpg") for i in range(2)]
    captions = []
    for place in (exported, lambda name: root / "captions" / name):
        captioner = fairseq_mm.from_pretrained(
            place("sc_nlm"),
            embedding=place("vse_images"),
            data=root / DATA / "captions_images",
            weights=root / DATA / "extractor" / "squeezenet.pth",
            device="cpu",
        )
        found = captioner.caption(images, candidates=20, shortest=2, longest=5, top=2)
        captions.append([repr(caption) for caption in found])
    assert captions[0] == captions[1]
    assert "text=" in captions[0][0]


def test_a_folder_is_exported_to_an_equal_folder(exported, tmp_path):
    from fairseq_mm.hub.export import export_checkpoint
    from fairseq_mm.inference.checkpoint import Checkpoint

    for name in ("conv_story_fusion", "bart"):
        first, second = exported(name), tmp_path / name
        export_checkpoint(Checkpoint.open(first), str(second))
        for path in first.iterdir():
            assert (second / path.name).read_bytes() == path.read_bytes(), path
