"""Subwords and frames travel with the weights, and older checkpoints still load."""

import pytest

from fairseq_mm.data.feature_store import EXTRACTOR_NOTES
from fairseq_mm.errors import UserError
from fairseq_mm.models._provenance import _NOTES, Provenance, decode_provenance, encode_json

GPT2 = {"kind": "gpt2", "encoder": {"a": 0}}


def provenance_of(**options):
    return Provenance(["a", "b"], {}, 5, ["a", "b"], **options)


def test_subwords_and_frames_are_carried_where_they_are_known():
    known = provenance_of(subwords=GPT2, max_frames=9)
    state = known.get_extra_state()
    content = decode_provenance(state)
    assert (content["subwords"], content["max_frames"]) == (GPT2, 9)
    other = provenance_of(max_frames=7)
    other.set_extra_state(state)
    assert (other.subwords, other.max_frames) == (GPT2, 9)
    assert not {"subwords", "max_frames"} & set(
        decode_provenance(provenance_of().get_extra_state())
    )


def test_a_checkpoint_without_subwords_loads():
    older = encode_json({"words": ["a", "b"], "extractor": {}, "feature_dim": 5})
    provenance = provenance_of(subwords=GPT2, max_frames=9)
    provenance.set_extra_state(older)
    assert (provenance.subwords, provenance.max_frames) == (GPT2, 9)


def test_other_subwords_are_refused():
    state = provenance_of(subwords=GPT2).get_extra_state()
    message = r"subwords of kind 'gpt2' \(fingerprint \w{12}\), but .* has subwords of kind 'none' "
    with pytest.raises(UserError, match=message):
        provenance_of(subwords={"kind": "none"}).set_extra_state(state)


def test_the_version_of_the_extractors_library_may_change():
    extractor = {"extractor": "timm:x", "weights_digest": "a", "library": "timm 1.0"}
    state = Provenance(["a", "b"], extractor, 5, ["a", "b"]).get_extra_state()
    resumed = Provenance(["a", "b"], {**extractor, "library": "timm 1.1"}, 5, ["a", "b"])
    resumed.set_extra_state(state)
    assert resumed.extractor == extractor
    other = Provenance(["a", "b"], {**extractor, "weights_digest": "b"}, 5, ["a", "b"])
    with pytest.raises(UserError, match="features with weights_digest = 'a', but the feature st"):
        other.set_extra_state(state)
    assert set(_NOTES) == set(EXTRACTOR_NOTES)


def test_a_model_with_features_and_one_without_are_told_apart():
    text = Provenance(["a", "b"], {}, 0, ["a", "b"])
    message = "was trained on 5-dimensional features, but the feature store has no features"
    with pytest.raises(UserError, match=message):
        text.set_extra_state(provenance_of().get_extra_state())
    with pytest.raises(UserError, match=r"on no features, but .* has 5-dimensional"):
        provenance_of().set_extra_state(text.get_extra_state())


def test_record_is_encoded_once_and_again_if_it_changes(monkeypatch):
    """A moving average of weights reads it in every update."""
    encoded = []

    def encode(content):
        encoded.append(content)
        return encode_json(content)

    monkeypatch.setattr("fairseq_mm.models._provenance.encode_json", encode)
    record = provenance_of()
    first = record.get_extra_state()
    first.zero_()  # a caller's copy
    assert decode_provenance(record.get_extra_state())["extractor"] == {}
    assert len(encoded) == 1
    record.extractor["library"] = "timm 1.0"
    assert decode_provenance(record.get_extra_state())["extractor"] == {"library": "timm 1.0"}
    record.max_frames = 7
    assert decode_provenance(record.get_extra_state())["max_frames"] == 7
