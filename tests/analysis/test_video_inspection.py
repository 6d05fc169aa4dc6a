"""What models that summarise videos looked at, against the equations written as loops."""

import math

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from numerics import assert_close
from toy_data import WORDS, make_dictionary, make_videos_folder, write_video_split
from toy_subwords import SENTENCES, write_gpt2
from toy_video_summarizers import data_task, random_summarizer

from fairseq_mm.analysis.video_inspection import VideoInspection
from fairseq_mm.data.subwords import Subwords

LINES = [3, 0, 4, 1]
HYPOTHESES = {f"valid{i}": " ".join(WORDS[i : 2 * i + 3]) for i in range(5)}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_videos_folder(tmp_path_factory.mktemp("inspection") / "data")


def inspection_of(data, arch, **options):
    task = data_task(data)
    model = random_summarizer(arch, task, **options)
    return VideoInspection(model, task, "valid", file="toy.pt", batch_size=3)


def alone(inspection, line, summary=None):
    """What the model is given of one line: nothing of it is padding."""
    example = dict(inspection.dataset[line])
    if summary is not None:
        dictionary = inspection.task.dictionary
        numbers = [dictionary.index(word) for word in summary.split()]
        example["target"] = torch.tensor([*numbers, dictionary.eos()])
    return inspection.dataset.collater([example])["net_input"]


def naive_fusion(fusion, text, video):
    """Weights ``[N, M]``, the heads' mean, and the mean of the gate: equations 4 to 13."""
    N, M = len(text), len(video)
    T = [[float(x) for x in row] for row in text]
    if fusion.kind == "multi_head":
        query, key, value = (
            layer(x)
            for layer, x in (
                (fusion.query_proj, text),
                (fusion.key_proj, video),
                (fusion.value_proj, video),
            )
        )
        heads, size = fusion.num_heads, query.size(1) // fusion.num_heads
    else:
        query, key, value = text, fusion.key_proj(video), video
        heads, size = 1, text.size(1)
    scale = math.sqrt(size) if fusion.kind == "multi_head" else 1.0
    width = value.size(1) // heads
    weights = np.zeros((N, M))
    read = np.zeros((N, value.size(1)))
    for n in range(N):
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            scores = [math.exp(float(query[n, part] @ key[m, part]) / scale) for m in range(M)]
            for m in range(M):
                share = scores[m] / sum(scores)
                weights[n, m] += share / heads
                for c in range(h * width, (h + 1) * width):
                    read[n, c] += share * float(value[m, c])
    if fusion.gate_proj is None:
        return weights, None
    if fusion.kind == "multi_head":  # appendix A
        W, b = (getattr(fusion.attention_out_proj, name).numpy() for name in ("weight", "bias"))
        read = read @ W.T + b
    W, b = fusion.gate_proj.weight.tolist(), fusion.gate_proj.bias.tolist()
    gates = []
    for n in range(N):
        both = [*read[n], *T[n]]
        for c in range(len(b)):
            total = b[c] + sum(w * x for w, x in zip(W[c], both))
            gates.append(1 / (1 + math.exp(-total)))
    return weights, sum(gates) / len(gates)


@torch.no_grad()
def naive(inspection, line, summary=None):
    """Side -> layers' weights, and layers' gates, of one line by itself."""
    model = inspection.model
    texts, videos = [], []
    handles = [model.encoder.video.register_forward_hook(lambda *call: videos.append(call[2][0]))]
    for part in (model.encoder, model.decoder):
        for fusion in part.fusions.values():
            hook = lambda module, given: texts.append((module, given[0]))  # noqa: E731
            handles.append(fusion.register_forward_pre_hook(hook))
    model(**alone(inspection, line, summary))
    for handle in handles:
        handle.remove()
    found = [naive_fusion(fusion, text[0], videos[0][0]) for fusion, text in texts]
    in_encoder = len(model.encoder.fusions)
    weights = {
        "transcript": [x for x, _ in found[:in_encoder]],
        "summary": [x for x, _ in found[in_encoder:]],
    }
    return weights, [gate for _, gate in found]


@pytest.mark.parametrize(
    ("arch", "options", "layers"),
    [
        ("vg_bart_tiny", {}, ["encoder layer 1", "encoder layer 2"]),
        (
            "vg_bart_tiny",
            {"fusion_encoder_layers": "", "fusion_decoder_layers": "2", "fusion": "dot_product"},
            ["decoder layer 2"],
        ),
        (
            "vg_t5_tiny",
            {"fusion_encoder_layers": "3", "fusion_decoder_layers": "1,2"},
            ["encoder layer 3", "decoder layer 1", "decoder layer 2"],
        ),
    ],
)
@pytest.mark.parametrize("summaries", [None, HYPOTHESES])
def test_weights_and_gates_are_the_equations_of_each_line_by_itself(
    data, arch, options, layers, summaries
):
    inspection = inspection_of(data, arch, **options)
    assert inspection.gate_layers == layers
    scores = inspection.gate_scores(LINES, summaries=summaries)
    assert scores.lines.tolist() == LINES
    assert scores.ids == [f"valid{line}" for line in LINES]
    assert scores.layers == layers
    looked = list(inspection.frame_attention(LINES, summaries=summaries))
    for i, (line, found) in enumerate(zip(LINES, looked)):
        summary = None if summaries is None else summaries[f"valid{line}"]
        weights, gates = naive(inspection, line, summary)
        assert_close(scores.by_layer[i], gates)
        assert_close(scores.scores[i], sum(gates) / len(gates))
        assert_close(found.gates, gates)
        assert (found.line, found.id) == (line, f"valid{line}")
        sides = [side for side in weights if weights[side]]
        assert [x.side for x in found.maps] == sides
        for attention in found.maps:
            assert_close(attention.weights, weights[attention.side])
            assert attention.weights.shape[-1] == found.num_frames
            assert attention.video_shares is None
            assert not attention.sums_over_words
            side = {"transcript": "tran", "summary": "desc"}[attention.side]
            text = (data / "text" / f"valid.{side}").read_text().splitlines()[line]
            if side == "desc" and summary is not None:
                text = summary
            assert attention.words == [*text.split(), "</s>"]


@torch.no_grad()
@pytest.mark.parametrize("arch", ["hierarchical_attention_rnn_tiny", "mffg_transformer_tiny"])
def test_hierarchical_attention_shows_frames_and_the_share_of_the_video(data, arch):
    inspection = inspection_of(data, arch)
    for line, found in zip(LINES, inspection.frame_attention(LINES, summaries=HYPOTHESES)):
        (attention,) = found.maps
        _, extra = inspection.model(**alone(inspection, line, HYPOTHESES[f"valid{line}"]))
        assert_close(attention.weights, extra["frame_attention"])
        assert_close(attention.video_shares, extra["modality_attention"][0, :, 1])
        assert (attention.side, attention.layers) == ("summary", ["decoder"])
        assert attention.words == [*HYPOTHESES[f"valid{line}"].split(), "</s>"]
        assert len(found.gates) == len(inspection.gate_layers) == (arch.startswith("mffg"))


@torch.no_grad()
@pytest.mark.parametrize("arch", ["mffg_rnn_tiny", "mffg_transformer_tiny"])
def test_mffg_s_gate_is_that_of_what_the_transcript_takes(data, arch):
    inspection = inspection_of(data, arch)
    found = inspection.gate_scores()
    assert found.layers == ["cross fusion"]
    assert found.ids == [f"valid{i}" for i in range(5)]
    fusion = next(m for m in inspection.model.modules() if hasattr(m, "text_fusion")).text_fusion
    for line in range(5):
        seen = []
        handle = fusion.register_forward_pre_hook(lambda _, given, s=seen: s.append(given))
        inspection.model(**alone(inspection, line))
        handle.remove()
        ((x, other, _),) = seen
        W, total = fusion.gate_proj.weight, 0.0
        for n in range(x.size(1)):
            query = fusion.query_proj(x[0, n])
            scores = [math.exp(float(query @ other[0, m]) / 8) for m in range(other.size(1))]
            read = sum(s / sum(scores) * other[0, m] for m, s in enumerate(scores))
            both = torch.cat([x[0, n], read])
            total += sum(1 / (1 + math.exp(-float(row @ both))) for row in W) / len(W)
        assert_close(found.scores[line], total / x.size(1))


def test_the_released_softmax_is_over_words_and_no_line_depends_on_another(data):
    options = {"compat": "released", "fusion": "dot_product"}
    inspection = inspection_of(data, "vg_bart_tiny", **options)
    together = list(inspection.frame_attention(LINES))
    for line, found in zip(LINES, together):
        (attention,) = found.maps
        assert attention.sums_over_words
        assert_close(attention.weights.sum(axis=1), 1)
        (single,) = inspection.frame_attention([line])
        np.testing.assert_array_equal(single.maps[0].weights, attention.weights)
        np.testing.assert_array_equal(single.gates, inspection.gate_scores([line]).by_layer[0])


def test_unknown_words_are_shown_as_they_were_written(data, tmp_path):
    folder = make_videos_folder(tmp_path / "data")
    lines = [(f"valid{i}", "a zebra runs on grass", "the gnu sits on a zebra") for i in range(5)]
    write_video_split(folder, "valid", lines, make_dictionary())
    inspection = inspection_of(folder, "vg_bart_tiny", fusion_decoder_layers="1")
    transcript, summary = next(inspection.frame_attention([2])).maps
    assert transcript.words == ["a", "zebra", "runs", "on", "grass", "</s>"]
    assert transcript.is_known == [True, False, True, True, True, True]
    assert summary.words == ["the", "gnu", "sits", "on", "a", "zebra", "</s>"]
    assert summary.is_known == [True, False, True, True, True, False, True]
    assert inspection.transcript(2) == "a zebra runs on grass"
    given = {"valid2": "an emu sits"}
    _, given_map = next(inspection.frame_attention([2], summaries=given)).maps
    assert given_map.words == ["an", "emu", "sits", "</s>"]
    assert given_map.is_known == [False, False, True, True]


@pytest.fixture
def gpt2(tmp_path):
    encoder, merges = write_gpt2(tmp_path / "gpt2")
    return Subwords.from_paths("gpt2", {"encoder.json": encoder, "vocab.bpe": merges})


def test_a_word_s_weights_are_the_mean_of_its_pieces(tmp_path, gpt2):
    dictionary = Dictionary()
    for number in range(262):
        dictionary.add_symbol(str(number))
    folder = make_videos_folder(tmp_path / "data")
    for side in ("tran", "desc"):
        dictionary.save(str(folder / f"dict.{side}.txt"))
    gpt2.save(folder)
    lines = [
        (f"valid{i}", *(" ".join(gpt2.encode(text)) for text in (SENTENCES[i], "roses, the")))
        for i in range(2)
    ]
    write_video_split(folder, "valid", lines, dictionary)
    inspection = inspection_of(folder, "vg_bart_tiny", fusion_decoder_layers="1")
    weights, _ = naive(inspection, 1, " ".join(gpt2.encode("tune the guitar")))
    summaries = dict.fromkeys(["valid0", "valid1"], "tune the guitar")
    _, found = inspection.frame_attention([0, 1], summaries=summaries)
    assert inspection.transcript(1) == SENTENCES[1]
    of_transcript, of_summary = found.maps
    assert of_transcript.words == [*SENTENCES[1].split(), "</s>"]
    assert of_summary.words == ["tune", "the", "guitar", "</s>"]
    assert len(gpt2.encode("tune the guitar")) == 12
    places = [0, 4, 5, 12, 13]  # t u n e, one merged piece, a space and six letters, the end
    for w in range(4):
        expected = weights["summary"][0][places[w] : places[w + 1]].mean(axis=0)
        assert_close(of_summary.weights[0, w], expected)
