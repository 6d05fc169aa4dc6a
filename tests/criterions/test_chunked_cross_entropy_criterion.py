"""Loss, gradients and log equal those of fairseq's criteria, for its models and ours."""

from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.logging import metrics
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from numerics import assert_close
from toy_data import build_model, make_captions_folder, make_dictionary, run_fairseq
from toy_data import toy_task as captioning_task
from toy_processes import needs_fork, train_by, training_configuration

from fairseq_mm.errors import UserError

B, S, T, PAD = 3, 5, 4, 1
ENCODER_DECODER = {"encoder_embed_dim": 8, "decoder_embed_dim": 8, "dropout": 0.0}
TRANSFORMER = {
    **ENCODER_DECODER,
    **{"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2},
    **{"decoder_attention_heads": 2, "max_source_positions": 20, "max_target_positions": 20},
}
LSTM = {**ENCODER_DECODER, "decoder_out_embed_dim": 6}
MODELS = {
    "transformer": ("transformer", TRANSFORMER),
    "transformer, shared": ("transformer", {**TRANSFORMER, "share_all_embeddings": True}),
    "lstm": ("lstm", LSTM),
    "lstm, shared": (
        "lstm",
        {**LSTM, "decoder_out_embed_dim": 8, "share_decoder_input_output_embed": True},
    ),
    "transformer_lm": ("transformer_lm", {**TRANSFORMER, "tokens_per_sample": 20}),
    "m_rnn": ("m_rnn_tiny", {}),
    "conv_story": (
        "conv_story_tiny",
        {"dropout": 0.0, "max_source_positions": 20, "max_target_positions": 20},
    ),
    "gcnn_lm": ("gcnn_lm_tiny", {"dropout": 0.0, "tokens_per_sample": 20}),
}
ADAPTIVE = {"adaptive_softmax_cutoff": "5,10", "criterion": "adaptive_loss"}
FCONV = {"max_source_positions": 20, "max_target_positions": 20, "share_input_output_embed": False}


def task():
    return Namespace(source_dictionary=make_dictionary(), target_dictionary=make_dictionary())


def make_model(arch, options):
    if arch in ("transformer", "lstm", "fconv"):
        args = Namespace(**{"criterion": "chunked_cross_entropy", **options})
        ARCH_CONFIG_REGISTRY[arch](args)
        torch.manual_seed(7)
        return ARCH_MODEL_REGISTRY[arch].build_model(args, task()).eval()
    of_task = captioning_task() if arch.startswith("m_rnn") else task()
    return build_model(arch, of_task, **options)


def make_sample(arch):
    torch.manual_seed(3)
    source, previous, target = (torch.randint(4, 20, (B, length)) for length in (S, T, T))
    target[0, 2:] = previous[0, 2:] = PAD
    if arch.startswith("m_rnn"):
        inputs = {"features": torch.randn(B, 2, 5), "padding_mask": torch.zeros(B, 2).bool()}
        inputs["prev_output_tokens"] = previous
    elif "_lm" in arch:
        inputs = {"src_tokens": previous, "src_lengths": previous.ne(PAD).sum(1)}
    else:
        inputs = {"src_tokens": source, "src_lengths": torch.full((B,), S)}
        inputs["prev_output_tokens"] = previous
    ntokens = int(target.ne(PAD).sum())
    return {"net_input": inputs, "target": target, "ntokens": ntokens}


def make_criterion(name="chunked_cross_entropy", sentence_avg=False, **options):
    if name == "chunked_cross_entropy":
        options = {"label_smoothing": 0.0, "chunk_megabytes": 1, **options}
    return CRITERION_REGISTRY[name](task(), sentence_avg=sentence_avg, **options)


def results(criterion, model, sample):
    model.zero_grad()
    loss, sample_size, log = criterion(model, sample)
    loss.backward()
    # a copy: the next result overwrites gradients
    gradients = {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return loss, sample_size, log, gradients


def logged(criterion, log):
    with metrics.aggregate(new_root=True) as values:
        type(criterion).reduce_metrics([log, log])
    return values.get_smoothed_values()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("label_smoothing", [None, 0.1])
@pytest.mark.parametrize("sentence_avg", [False, True])
def test_equals_the_criteria_of_fairseq(name, label_smoothing, sentence_avg):
    arch, options = MODELS[name]
    model, sample = make_model(arch, options), make_sample(arch)
    if label_smoothing is None:
        ours, theirs = make_criterion(), make_criterion("cross_entropy")
    else:
        ours = make_criterion(label_smoothing=label_smoothing)
        theirs = make_criterion("label_smoothed_cross_entropy", label_smoothing=label_smoothing)
    ours.sentence_avg = theirs.sentence_avg = sentence_avg
    loss, sample_size, log, gradients = results(ours, model, sample)
    expected_loss, expected_size, expected_log, expected = results(theirs, model, sample)
    assert_close(loss, expected_loss)
    assert sample_size == expected_size
    for key, value in expected_log.items():
        assert float(log[key]) == pytest.approx(float(value), rel=1e-5)
    assert gradients.keys() == expected.keys()
    for key, gradient in expected.items():
        assert_close(gradients[key], gradient, msg=key)
    found = logged(ours, log)
    for key, value in logged(theirs, expected_log).items():
        assert found[key] == pytest.approx(value, abs=2e-3), key
    assert {"loss", "nll_loss", "ppl"} <= found.keys()


def test_model_is_left_as_it_was():
    arch, options = MODELS["lstm"]
    model, sample = make_model(arch, options), make_sample(arch)
    make_criterion()(model, sample)
    assert "forward" not in vars(model)
    assert "output_layer" not in vars(model.decoder)
    assert model(**sample["net_input"])[0].shape == (B, T, 20)


def test_weight_that_is_computed_gets_its_gradient():
    arch, options = MODELS["transformer"]
    model, sample = make_model(arch, options), make_sample(arch)
    torch.nn.utils.weight_norm(model.decoder.output_projection, dim=0)
    *_, gradients = results(make_criterion(), model, sample)
    *_, expected = results(make_criterion("cross_entropy"), model, sample)
    assert "decoder.output_projection.weight_g" in gradients
    for key, gradient in expected.items():
        assert_close(gradients[key], gradient, msg=key)


class Changed:
    """An output layer, forward pass or probabilities that are not those of a linear layer."""

    @staticmethod
    def scaled_features(decoder):
        own = decoder.output_layer
        decoder.output_layer = lambda features: own(features * 2)

    @staticmethod
    def features_scaled_in_place(decoder):
        own = decoder.output_layer
        decoder.output_layer = lambda features: own(features.mul_(2))

    @staticmethod
    def two_layers(decoder):
        own = decoder.output_layer
        decoder.output_layer = lambda features: own(F.linear(features, torch.eye(8)))

    @staticmethod
    def scaled_logits(decoder):
        own = decoder.output_layer
        decoder.output_layer = lambda features: own(features) * 2

    @staticmethod
    def masked_logits(decoder):
        own = decoder.output_layer

        def output_layer(features):
            logits = own(features)
            logits[..., PAD] = -1e4
            return logits

        decoder.output_layer = output_layer


@pytest.mark.parametrize("change", [name for name in vars(Changed) if name[0] != "_"])
def test_output_layer_that_does_more_is_refused(change):
    arch, options = MODELS["transformer"]
    model, sample = make_model(arch, options), make_sample(arch)
    getattr(Changed, change)(model.decoder)
    with pytest.raises(UserError, match=r"TransformerModel: its output_layer is something else\."):
        make_criterion()(model, sample)


def test_forward_pass_that_does_more_is_refused():
    arch, options = MODELS["transformer"]
    model, sample = make_model(arch, options), make_sample(arch)
    own = model.decoder.forward
    model.decoder.forward = lambda *args, **kwargs: (own(*args, **kwargs)[0] * 2, None)
    with pytest.raises(UserError, match="forward pass changes what output_layer gives"):
        make_criterion()(model, sample)


def test_probabilities_that_are_no_softmax_are_refused():
    arch, options = MODELS["transformer"]
    model, sample = make_model(arch, options), make_sample(arch)
    model.get_normalized_probs = lambda net_output, log_probs: F.log_softmax(net_output[0] / 2, -1)
    with pytest.raises(UserError, match="its log-probabilities are no log-softmax of it"):
        make_criterion()(model, sample)


@pytest.mark.parametrize(
    ("arch", "options", "reason"),
    [
        ("transformer", {**TRANSFORMER, **ADAPTIVE}, "Model: it has an adaptive softmax"),
        ("lstm", {**LSTM, **ADAPTIVE}, "LSTMModel: it has an adaptive softmax"),
        ("fconv", FCONV, "FConvModel: its forward pass calls output_layer 0 times"),
    ],
)
def test_model_without_a_linear_output_layer_is_refused(arch, options, reason):
    model, sample = make_model(arch, options), make_sample(arch)
    with pytest.raises(UserError, match=reason):
        make_criterion()(model, sample)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.0}, r"--label-smoothing must be below 1, but is 1\.0\."),
        ({"chunk_megabytes": 0}, r"--chunk-megabytes must be 1 or more, but is 0\."),
    ],
)
def test_option_out_of_its_range_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        make_criterion(**options)


TRAINING = (
    *("--task", "multimodal_captioning", "--arch", "m_rnn_tiny", "--optimizer", "sgd"),
    *("--lr", "0.1", "--max-update", "1", "--num-workers", "0", "--cpu", "--log-format", "none"),
    *("--no-epoch-checkpoints", "--seed", "3", "--feature-dropout", "0", "--dropout", "0"),
    *("--embedding-dropout", "0", "--recurrent-dropout", "0"),
)


@pytest.fixture
def data(tmp_path):
    return make_captions_folder(tmp_path / "data")


def trained(monkeypatch, data, save_dir, criterion, *options):
    arguments = (*TRAINING, "--criterion", criterion, "--save-dir", save_dir, *options)
    run_fairseq(monkeypatch, "train", data, *arguments)
    return torch.load(save_dir / "checkpoint_last.pt", map_location="cpu")


def assert_same_training(state, expected):
    for key, weights in expected["model"].items():
        assert_close(state["model"][key], weights)
    assert state["extra_state"]["val_loss"] == pytest.approx(
        expected["extra_state"]["val_loss"], abs=2e-3
    )


def test_fairseq_trains_and_validates_as_with_its_own(monkeypatch, tmp_path, data):
    options = ("--batch-size", "9", "--label-smoothing", "0.1")
    ours = trained(monkeypatch, data, tmp_path / "a", "chunked_cross_entropy", *options)
    theirs = trained(monkeypatch, data, tmp_path / "b", "label_smoothed_cross_entropy", *options)
    assert_same_training(ours, theirs)
    logged = []
    monkeypatch.setattr(
        "fairseq.logging.progress_bar.JsonProgressBar.print",
        lambda self, stats, **kwargs: logged.append(stats),
    )
    run_fairseq(
        monkeypatch,
        "validate",
        *(data, "--task", "multimodal_captioning", "--path", tmp_path / "a/checkpoint_last.pt"),
        *("--valid-subset", "valid", "--batch-size", "4", "--cpu", "--log-format", "json"),
    )
    expected = ours["extra_state"]["val_loss"]
    assert float(logged[-1]["loss"]) == pytest.approx(expected, abs=2e-3)


@needs_fork
def test_two_processes_train_as_one(monkeypatch, tmp_path, data):
    # the wrapper needs to see the output layer's weights in what the model gives
    ddp = ("--ddp-backend", "pytorch_ddp", "--find-unused-parameters")
    options = ("--criterion", "chunked_cross_entropy", "--batch-size", "5", *ddp)
    two = train_by(2, training_configuration(data, *TRAINING, *options), tmp_path / "two")
    # one process takes both processes' batches before its step
    options = ("--batch-size", "5", "--update-freq", "2")
    one = trained(monkeypatch, data, tmp_path / "one", "cross_entropy", *options)
    assert_same_training(two, one)
