"""Hugging Face's T5, converted, gives the same logits and the same summaries."""

import json
import os
import shutil

import pytest
import sentencepiece
import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from numerics import assert_close

from fairseq_mm.conversion.t5 import convert_t5
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.tasks.video_summarization import VideoSummarizationTask

transformers = pytest.importorskip("transformers")

SENTENCES = [
    "learn how to make a cake in this free video",
    "watch an expert play the guitar and sing a song",
    "tips for yoga from a professional teacher",
    "how to fix the brakes of an old bicycle at home",
    "what to do with your dog when it rains outside",
    "the chef shows how to cut vegetables quickly",
]
# T5's sums are not normalised: inside, numbers are several times larger than the logits. With
# SSE4.1, logits of 14 differ by 80 roundings; without its scale of 12**-0.5, by millions.
T5_ROUNDINGS = 1024
V = 256  # pieces, 100 extra ids, filler
KINDS = {
    "t5": {},
    "t5_v1_1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}


def train_pieces(path, **options):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3),
        model_prefix=os.path.splitext(path)[0],
        **{
            "vocab_size": 60,
            "model_type": "unigram",
            "pad_id": 0,
            "eos_id": 1,
            "unk_id": 2,
            "bos_id": -1,
            "minloglevel": 2,
            **options,
        },
    )


def make_model(kind, vocab_size=V, **options):
    config = transformers.T5Config(
        vocab_size=vocab_size,
        d_model=12,
        d_kv=5,
        d_ff=14,
        num_layers=3,
        num_decoder_layers=2,
        num_heads=2,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=11,
        decoder_start_token_id=0,
        **{**KINDS[kind], **options},
    )
    torch.manual_seed(5)
    model = transformers.T5ForConditionalGeneration(config).eval()
    if kind == "t5_v1_1":
        model.lm_head.weight = torch.nn.Parameter(torch.randn(vocab_size, 12))
    for parameter in model.parameters():  # norms and biases of distances that are not alike
        with torch.no_grad():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def favour_the_end(model, share):
    """Makes </s> about as likely as the likeliest piece, so that searches end."""
    with torch.no_grad():
        tokens = torch.arange(3, 60).view(3, 19)
        out = model(input_ids=tokens, decoder_input_ids=tokens, output_hidden_states=True)
        states = out.decoder_hidden_states[-1]
        direction = states.mean(dim=(0, 1))
        model.lm_head.weight[1] = direction
        own = model(input_ids=tokens, decoder_input_ids=tokens).logits[..., 1].mean()
        model.lm_head.weight[1] *= share * out.logits.amax(-1).mean() / own


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    path = tmp_path_factory.mktemp("pieces") / "spiece.model"
    train_pieces(str(path))
    return path


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def save(model, folder, pieces):
    model.save_pretrained(folder)
    shutil.copy(pieces, folder / "spiece.model")
    return folder


def load(path):
    checkpoint = Checkpoint.open(path)
    task = VideoSummarizationTask.from_provenance(
        *(checkpoint.words, checkpoint.extractor, checkpoint.feature_dim),
        subwords=checkpoint.subwords,
    )
    return checkpoint.build_model(task), task


def to_ours(rows):
    """T5's row -> entry of fairseq's dictionary."""
    return (rows + 1) % V


def batch_of_theirs():
    torch.manual_seed(2)
    tokens = torch.randint(3, 60, (6, 9))
    tokens[:, -1] = 1
    for row in range(6):
        tokens[row, :row] = 0
    return tokens


def test_logits_are_equal_row_by_row(kind, pieces, tmp_path):
    theirs = make_model(kind)
    convert_t5(str(save(theirs, tmp_path / "hf", pieces)), str(tmp_path / "fairseq"))
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    ours, _ = load(str(tmp_path / "fairseq" / "model.pt"))
    tokens = batch_of_theirs()
    previous = torch.cat([torch.zeros(6, 1, dtype=torch.long), torch.randint(2, V, (6, 30))], dim=1)
    with torch.no_grad():
        expected = theirs(
            input_ids=tokens, attention_mask=tokens.ne(0).long(), decoder_input_ids=previous
        ).logits
        logits = ours(to_ours(tokens), None, to_ours(previous))[0]
    assert logits.std() > 0.5
    assert_close(logits.roll(-1, dims=-1), expected, roundings=T5_ROUNDINGS)


def test_beam_outputs_are_identical(kind, pieces, tmp_path):
    theirs = make_model(kind)
    favour_the_end(theirs, share=2.0 if kind == "t5" else 0.8)
    convert_t5(str(save(theirs, tmp_path / "hf", pieces)), str(tmp_path / "fairseq"))
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    ours, task = load(str(tmp_path / "fairseq" / "model.pt"))
    tokens = batch_of_theirs()
    expected = theirs.generate(
        input_ids=tokens,
        attention_mask=tokens.ne(0).long(),
        num_beams=4,
        early_stopping=True,
        length_penalty=0.8,
        min_new_tokens=1,
        max_new_tokens=60,
        suppress_tokens=[0],  # which fairseq never generates
        return_dict_in_generate=True,
        output_scores=True,
    )
    generator = SequenceGenerator(
        [ours], task.target_dictionary, beam_size=4, len_penalty=0.8, max_len_b=59
    )
    sample = {
        "net_input": {
            "src_tokens": to_ours(tokens),
            "src_lengths": tokens.ne(0).sum(1),
            "prev_output_tokens": None,
        }
    }
    hypotheses = generator.generate([ours], sample, bos_token=ours.start_index)
    best = [beams[0] for beams in hypotheses]
    for row, wanted in enumerate(expected.sequences[:, 1:]):
        wanted = wanted[: int(wanted.eq(1).nonzero()[0]) + 1]
        assert torch.equal(best[row]["tokens"], to_ours(wanted))
    scores = torch.stack([hypothesis["score"] for hypothesis in best])
    torch.testing.assert_close(scores, expected.sequences_scores, atol=1e-4, rtol=0)
    lengths = {len(hypothesis["tokens"]) for hypothesis in best}
    assert len(lengths) > 2


def test_dictionary_has_a_name_for_each_row(pieces, tmp_path):
    folder = save(make_model("t5"), tmp_path / "hf", pieces)
    converted = convert_t5(str(folder), str(tmp_path / "fairseq"))
    dictionary = Dictionary.load(str(tmp_path / "fairseq" / "dict.txt"))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
    assert converted.words == len(dictionary) == V
    for row in range(3, 60):
        assert dictionary.index(processor.id_to_piece(row)) == row + 1
    # T5's first row after the pieces is its last extra id, and the other way round
    for number, row in ((99, 60), (98, 61), (0, 159)):
        assert dictionary[row + 1] == f"<extra_id_{number}>"
    assert dictionary[V - 1] == f"<row_{V - 2}>"
    assert len(set(dictionary.symbols)) == V
    text = "watch a chef play the guitar"
    pieces_of_text = " ".join(processor.encode(text, out_type=str))
    tokens = dictionary.encode_line(pieces_of_text, add_if_not_exist=False)
    assert (tokens - 1).tolist() == [*processor.encode(text), 1]
    assert sorted(os.listdir(tmp_path / "fairseq")) == [
        "dict.txt",
        "model.pt",
        "sentencepiece.model",
        "subwords.json",
    ]
    model, task = load(str(tmp_path / "fairseq" / "model.pt"))
    assert task.subwords.encode("a chef")[0].startswith("\u2581")
    assert converted.arch == "t5"
    assert converted.options["head_dim"] == 5
    assert "dropout" not in converted.options  # as by default
    assert converted.parameters == sum(x.numel() for x in model.parameters())
    assert converted.notes == []


@pytest.mark.parametrize(
    ("is_shared", "is_scaled", "note"),
    [
        (True, False, "shared, but not scaled"),
        (False, True, "scaled, but not shared"),
    ],
)
def test_output_is_shared_and_scaled_in_any_mixture(is_shared, is_scaled, note, pieces, tmp_path):
    theirs = make_model("t5", tie_word_embeddings=is_scaled)
    if not is_shared:
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn(V, 12))
    folder = save(theirs, tmp_path / "hf", pieces)
    converted = convert_t5(str(folder), str(tmp_path / "fairseq"))
    assert len(converted.notes) == 1
    assert note in converted.notes[0]
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    ours, _ = load(str(tmp_path / "fairseq" / "model.pt"))
    tokens = torch.randint(3, 60, (2, 5))
    with torch.no_grad():
        expected = theirs(input_ids=tokens, decoder_input_ids=tokens).logits
        logits = ours(to_ours(tokens), None, to_ours(tokens))[0]
    assert_close(logits.roll(-1, dims=-1), expected, roundings=T5_ROUNDINGS)


def test_last_extra_id_stands_in_where_no_row_is_unused(pieces, tmp_path):
    folder = save(make_model("t5", vocab_size=160), tmp_path / "hf", pieces)
    converted = convert_t5(str(folder), str(tmp_path / "fairseq"))
    assert "no unused row: the last one, 159 (<extra_id_0>), is fairseq's <s>" in converted.notes[0]
    dictionary = Dictionary.load(str(tmp_path / "fairseq" / "dict.txt"))
    assert len(dictionary) == 160
    assert dictionary[159] == "<extra_id_1>"
    assert "<extra_id_0>" not in dictionary


def test_pieces_that_no_line_can_hold_get_other_names(tmp_path):
    train_pieces(
        str(tmp_path / "spiece.model"), vocab_size=64, user_defined_symbols=["a b", "<s>", "\u00a0"]
    )
    folder = save(make_model("t5"), tmp_path / "hf", tmp_path / "spiece.model")
    convert_t5(str(folder), str(tmp_path / "fairseq"))
    dictionary = Dictionary.load(str(tmp_path / "fairseq" / "dict.txt"))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert len(dictionary) == V
    for row in range(3, 64):
        piece = processor.id_to_piece(row)
        is_usable = piece not in ("a b", "a\u2581b", "<s>", "\u00a0") or piece == "a\u2581b"
        assert dictionary[row + 1] == (piece if is_usable else f"<row_{row}>")
    assert dictionary.index("<s>") == 0


@pytest.fixture(scope="module")
def saved(pieces, tmp_path_factory):
    return save(make_model("t5"), tmp_path_factory.mktemp("saved") / "hf", pieces)


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_weights(folder, change):
    import safetensors.torch

    weights = safetensors.torch.load_file(folder / "model.safetensors")
    change(weights)
    safetensors.torch.save_file(weights, folder / "model.safetensors")


WI = "encoder.block.1.layer.1.DenseReluDense.wi.weight"
MISTAKES = {
    "no pieces": (
        lambda folder: (folder / "spiece.model").unlink(),
        r"spiece\.model: cannot be read \(No such file",
    ),
    "other special pieces": (
        lambda folder: train_pieces(str(folder / "spiece.model"), pad_id=3, unk_id=0),
        r"padding, </s> and <unk> must be pieces 0, 1 and 2, as T5's are, but are 3, 1 and 0\.$",
    ),
    "more pieces than rows": (
        lambda folder: change_weights(
            folder, lambda x: x.update({"shared.weight": x["shared.weight"][:60].clone()})
        ),
        r"has 60 pieces, but the embedding only 60 rows: .*resize_token_embeddings\(61\) makes it",
    ),
    "sizes that cannot be": (
        lambda folder: change_config(folder, relative_attention_num_buckets=6),
        r"--relative-buckets must be a multiple of 4\b.*, but is 6\.$",
    ),
    "numbers that are none": (
        lambda folder: change_weights(folder, lambda x: x[WI].fill_(float("nan"))),
        r"has NaN or infinite values in encoder\.layers\.1\.feed_forward\.inner_proj\.weight",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_said_in_one_line_and_leave_nothing(name, saved, tmp_path):
    spoil, message = MISTAKES[name]
    folder = tmp_path / "hf"
    shutil.copytree(saved, folder)
    spoil(folder)
    with pytest.raises(UserError, match=message):
        convert_t5(str(folder), str(tmp_path / "fairseq"))
    assert os.listdir(tmp_path) == ["hf"]
