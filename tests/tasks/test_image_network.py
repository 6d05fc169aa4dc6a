"""Training of the image network with a model that reads its features, and their separation."""

import numpy as np
import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from PIL import Image
from toy_data import make_captions_folder, run_fairseq, write_store
from toy_optimizers import PRECISIONS, optimizer_config

import fairseq_mm
from fairseq_mm.compat.loading import NETWORK_PREFIX
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import build_extractor
from fairseq_mm.models._bases import scale_vectors
from fairseq_mm.models._provenance import STATE_KEY, decode_provenance, encode_json
from fairseq_mm.tasks._image_network import step_with_scaled_network
from fairseq_mm.tasks.multimodal_captioning import MultimodalCaptioningTask

MODEL, SIDE = "shufflenet_v2_x0_5", 33
CROSS_ENTROPY, RANKING = (
    ("--criterion", "cross_entropy"),
    ("--criterion", "pairwise_ranking", "--feature-scaling", "root"),
)
TRAIN = (
    *("--task", "multimodal_captioning", "--optimizer", "adam", "--lr", "0.01", "--cpu"),
    *("--batch-size", "12", "--num-workers", "0", "--log-format", "none"),
    "--no-epoch-checkpoints",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data folders ``pooled`` and ``grid``, their ``images``, and ``network.pt``."""
    import torchvision

    folder = tmp_path_factory.mktemp("image_network")
    torch.manual_seed(2)
    network = vars(torchvision.models)[MODEL](weights=None)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for values in (module.weight, module.running_var):
                torch.nn.init.uniform_(values, 0.5, 1.5)
            for values in (module.bias, module.running_mean):
                torch.nn.init.normal_(values, std=0.2)
    weights = folder / "network.pt"
    torch.save(network.state_dict(), weights)
    (folder / "images").mkdir()
    generator = np.random.default_rng(5)
    keys = [f"train{i}.jpg" for i in range(12)] + [f"valid{i}.jpg" for i in range(7)]
    for key in keys:
        pixels = generator.integers(0, 256, size=(8, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((50, 44)).save(folder / "images" / key)
    for kind in ("pooled", "grid"):
        data = make_captions_folder(folder / kind)
        extract(data / "features.h5", folder, weights, grid=kind == "grid")
    return folder


def extract(path, folder, weights, *, grid=False):
    extractor = build_extractor(MODEL, weights=str(weights), resize="squash", size=SIDE, grid=grid)
    images = sorted((folder / "images").iterdir())
    path.unlink(missing_ok=True)
    with FeatureStoreWriter(
        path, dim=extractor.dim, dtype="float32", attributes=extractor.identity
    ) as writer:
        for image, rows in zip(images, extractor.extract(images)):
            writer.append(image.name, rows)
        writer.finish()


def joint(folder):
    return ("--photos", folder / "images", "--image-network", folder / "network.pt")


def set_up(data, *arguments, split="valid"):
    """Task, model and criterion of a training, with a split."""
    arguments = [str(x) for x in (data, *TRAIN, *arguments)]
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    cfg = convert_namespace_to_omegaconf(args)
    task = MultimodalCaptioningTask.setup_task(cfg.task)
    torch.manual_seed(1)
    model = task.build_model(cfg.model)
    task.load_dataset(split, combine=split == "train", epoch=1)
    return task, model, task.build_criterion(cfg.criterion)


def first_batch(task, split="valid"):
    dataset = task.datasets[split]
    return dataset.collater([dataset[i] for i in range(9)])


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("pooled", ("--arch", "m_rnn_tiny", *CROSS_ENTROPY)),
        ("grid", ("--arch", "transformer_captioner_tiny", *CROSS_ENTROPY)),
        ("pooled", ("--arch", "vse_tiny", *RANKING)),
    ],
)
def test_the_network_gives_the_loss_of_stored_features_and_gets_gradients(folder, kind, arguments):
    task, model, criterion = set_up(folder / kind, *arguments)
    pixel_task, pixel_model, pixel_criterion = set_up(folder / kind, *arguments, *joint(folder))
    pixel_model.load_state_dict(model.state_dict())
    batch = first_batch(pixel_task)
    assert batch["net_input"]["features"].dtype == torch.uint8
    expected, *_ = criterion(model.eval(), first_batch(task))
    loss, *_ = pixel_criterion(pixel_model.eval(), batch)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    for name, weight in pixel_model.image_network.named_parameters():
        assert weight.grad.isfinite().all(), name
        assert weight.grad.any(), name


def test_a_training_with_photos_starts_and_goes_on_from_a_checkpoint(
    folder, tmp_path, monkeypatch, run_command
):
    """Also: the separated parts write the captions of the joint model."""
    model = ("--arch", "m_rnn_tiny", *CROSS_ENTROPY)
    data, alone, saved = folder / "pooled", tmp_path / "alone", tmp_path / "joint"
    run_fairseq(monkeypatch, "train", data, *TRAIN, *model, "--save-dir", alone, "--max-epoch", "1")
    checkpoint = ("--finetune-from-model", alone / "checkpoint_best.pt", "--save-dir", saved)
    options = ("--eval-gen", "--flip-photos", "--preload-features")
    options = (*options, "--network-lr-scale", "0.5", *joint(folder))
    options = (*options, "--network-first-layer", "conv1")  # the first module
    run_fairseq(monkeypatch, "train", data, *TRAIN, *model, *checkpoint, *options, "--max-epoch=1")
    # resumed
    run_fairseq(monkeypatch, "train", data, *TRAIN, *model, *checkpoint, *options, "--max-epoch=2")
    before = torch.load(folder / "network.pt")
    status, _, stderr = run_command("export", saved, tmp_path / "parts", "--separate-network")
    assert status == 0, stderr
    after = torch.load(tmp_path / "parts" / f"{MODEL}.pt")
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    statistics = {name for name in after if "running" in name}
    assert changed == set(after) - statistics

    task, joint_model, _ = set_up(data, *model, *joint(folder))
    joint_model.load_state_dict(torch.load(saved / "checkpoint_best.pt")["model"])
    generator = task.build_generator([joint_model.eval()], options_of_search())
    dataset = task.datasets["valid"]
    lines = [3 * i for i in range(7)]  # three captions an image
    found = task.inference_step(
        generator, [joint_model], dataset.collater([dataset[i] for i in lines])
    )
    texts = [task.dictionary.string(best["tokens"]) for best, *_ in found]
    images = [folder / "images" / f"valid{i}.jpg" for i in range(7)]
    parts = fairseq_mm.from_pretrained(tmp_path / "parts", device="cpu")
    recorded = torch.load(tmp_path / "parts" / "checkpoint_best.pt")["cfg"]["task"]
    assert not [name for name in recorded if "photos" in name or "network" in name]
    hypotheses = parts.generate(images, beam=2, max_len_b=8)
    assert [best.text for best, *_ in hypotheses] == texts


def options_of_search():
    from argparse import Namespace

    return Namespace(beam=2, max_len_a=0, max_len_b=8)


def test_a_joint_checkpoint_names_the_command_that_separates_it(
    folder, tmp_path, monkeypatch, run_command
):
    """For an embedding, whose validation ranks images by their pixels."""
    model = ("--arch", "vse_tiny", *RANKING, "--best-checkpoint-metric", "rsum")
    model = (*model, "--maximize-best-checkpoint-metric", "--max-update", "1")
    data, saved = folder / "pooled", tmp_path / "joint"
    run_fairseq(monkeypatch, "train", data, *TRAIN, *model, *joint(folder), "--save-dir", saved)
    message = "contains the image network that it was trained with"
    index = tmp_path / "index.h5"
    arguments = ("index", folder / "images", "--checkpoint", saved, "--output", index)
    status, _, stderr = run_command(*arguments)
    assert status == 2
    assert not index.exists()
    assert message in stderr
    assert len(stderr.splitlines()) == 1
    again = ("--finetune-from-model", saved / "checkpoint_best.pt", "--save-dir", tmp_path / "x")
    with pytest.raises(UserError, match=message):
        run_fairseq(monkeypatch, "train", data, *TRAIN, *model, *again)
    check_that_damage_is_named(saved / "checkpoint_best.pt", tmp_path, run_command)
    for _ in range(2):  # the second time from a model without network
        status, _, stderr = run_command("export", saved, tmp_path / "parts", "--separate-network")
        saved = tmp_path / "parts"
    assert status == 2
    assert "must contain an image network" in stderr


def check_that_damage_is_named(joint, folder, run_command):
    """``fairseq-mm export --separate-network`` names the checkpoint, and writes no folder."""
    state = torch.load(joint)
    provenance = decode_provenance(state["model"][STATE_KEY])
    extractor = {**provenance["extractor"]}
    del extractor["extractor"]
    for name, value, problem in (
        (f"{NETWORK_PREFIX}other", torch.zeros(2), "other"),
        ("image_proj.weight", None, "its weights do not fit --arch vse_tiny: "),
        (STATE_KEY, encode_json({**provenance, "extractor": extractor}), "no `extractor` is rec"),
    ):
        damaged = {x: y for x, y in {**state["model"], name: value}.items() if y is not None}
        path = folder / "damaged.pt"
        torch.save({**state, "model": damaged}, path)
        status, _, stderr = run_command("export", path, folder / "lost", "--separate-network")
        assert status == 2
        assert problem in stderr
        assert len(stderr.splitlines()) == 1
        assert not list(folder.glob("lost*"))


def test_images_are_flipped_in_training_only(folder):
    task, model, _ = set_up(
        folder / "pooled", "--arch", "m_rnn_tiny", *joint(folder), "--flip-photos"
    )
    network = model.image_network
    pixels = first_batch(task)["net_input"]["features"][:1].expand(20, -1, -1).contiguous()
    mirrored = pixels.view(20, *network.pixels_shape).flip(2).reshape(pixels.shape)
    plain, other = (network.eval()(x)[0].detach() for x in (pixels, mirrored))

    def is_near(rows, expected):
        return (rows - expected).abs().amax((1, 2)) < 0.01 * (plain - other).abs().max()

    rows = network.train()(pixels).detach()
    assert 0 < is_near(rows, plain).sum() < 20
    assert torch.equal(is_near(rows, other), ~is_near(rows, plain))
    assert is_near(network.eval()(pixels), plain).all()
    network.flip = False
    assert is_near(network.train()(pixels), plain).all()


def test_the_captions_of_an_image_share_one_pass_of_the_network(folder):
    task, model, _ = set_up(folder / "pooled", "--arch", "m_rnn_tiny", *joint(folder))
    task.load_dataset("train", combine=True, epoch=1)
    dataset = task.datasets["train"]
    items = dataset.item[dataset.ordered_indices()].reshape(12, 3)
    assert (items == items[:, :1]).all()
    assert (items[:, 0] != np.arange(12)).any()  # in random order
    counts = []
    model.image_network.register_forward_pre_hook(lambda _, inputs: counts.append(len(inputs[0])))
    batch = first_batch(task)["net_input"]
    features, _ = model.read_pixels(batch["features"], batch["padding_mask"])
    assert counts == [3]
    assert torch.allclose(features, model.image_network(batch["features"]), atol=1e-5)


def test_modules_before_the_first_trained_one_keep_their_weights(folder):
    arguments = ("--arch", "m_rnn_tiny", *joint(folder), "--network-first-layer")
    _, model, _ = set_up(folder / "pooled", *arguments, "stage4")
    trained = {
        name.split(".")[2]
        for name, weight in model.image_network.named_parameters()
        if weight.requires_grad
    }
    assert trained == {"stage4", "conv5"}
    with pytest.raises(UserError, match=r"has no such module\. Near: "):
        set_up(folder / "pooled", *arguments, "stage9")


def test_a_network_with_scale_0_is_not_trained(folder):
    options = ("--arch", "m_rnn_tiny", *joint(folder), "--network-lr-scale", "0")
    task, model, criterion = set_up(folder / "pooled", *options)
    assert not any(x.requires_grad for x in model.image_network.parameters())
    criterion(model, first_batch(task))[0].backward()
    weights = [x for x in model.parameters() if x.requires_grad]
    before = [x.clone() for x in weights]
    task.optimizer_step(torch.optim.SGD(weights, lr=1.0), model, 0)
    assert not any(torch.equal(x, y) for x, y in zip(weights, before))


@pytest.mark.parametrize(("dtype", "common"), [(torch.float32, {}), *PRECISIONS])
def test_a_scaled_step_is_the_step_of_a_scaled_rate(dtype, common):
    from fairseq import optim

    def train(scale):
        weights = [torch.nn.Parameter(torch.full((3,), 0.5, dtype=dtype)) for _ in range(2)]
        adam = {"_name": "adam", "lr": [0.1], "weight_decay": 0.1, "use_old_adam": True}
        adam["tpu"] = False
        cfg = optimizer_config({**adam, "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8}, **common)
        if not common:
            optimizer = optim.build_optimizer(cfg.optimizer, weights)
        elif common.get("memory_efficient_fp16"):
            optimizer = optim.MemoryEfficientFP16Optimizer.build_optimizer(cfg, weights)
        else:
            optimizer = optim.FP16Optimizer.build_optimizer(cfg, weights)
        for _ in range(3):
            optimizer.zero_grad()
            optimizer.backward(sum((x.float() * torch.arange(1, 4.0)).sum() for x in weights))
            optimizer.clip_grad_norm(0)
            if scale is None:
                optimizer.set_lr(0.05)
                optimizer.step()
            else:
                step_with_scaled_network(optimizer, weights[1:], scale)
        return [x.detach().float() for x in weights]

    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    half_rate = train(None)[1]
    whole, scaled = train(0.5)
    assert torch.allclose(scaled, half_rate, atol=tolerance)
    assert (whole - scaled).abs().min() > 0.1
    assert torch.equal(train(0.0)[1], torch.full((3,), 0.5))


def test_flat_float32_copies_are_scaled_in_their_pieces():
    class Flat:
        """Optimizer with one float32 copy of all weights, as ``--fp16`` has it on a GPU."""

        def __init__(self, weights):
            self.fp16_params = weights
            self.fp32_params = {0: torch.nn.Parameter(torch.zeros(5))}

        def step(self):
            self.fp32_params[0].data += 1

        def _sync_fp32_params_to_fp16(self):
            self.synced = self.fp32_params[0].detach().clone()

    weights = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))]
    optimizer = Flat(weights)
    step_with_scaled_network(optimizer, weights[:1], 0.25)
    assert optimizer.synced.tolist() == [0.25, 0.25, 1, 1, 1]
    with pytest.raises(UserError, match="fully_sharded"):
        step_with_scaled_network(optimizer, [torch.zeros(2)], 0.25)


def test_the_root_of_zero_has_a_finite_gradient():
    x = torch.tensor([[0.0, 4.0, 0.0, 1.0]], requires_grad=True)
    scaled = scale_vectors(x, "root")
    assert torch.equal(scaled, scale_vectors(x.detach(), "root"))
    scaled[0, 0].backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    ("attributes", "arguments", "message"),
    [
        ({"extractor": "timm:vit_tiny"}, (), "features are from timm:vit_tiny"),
        ({"extractor": "r3d_18"}, (), "features are from r3d_18"),
        ({"weights": "f" * 64}, (), r"network\.pt: must have the SHA-256 ffffffffffff"),
        (
            {"weights": "torchvision:X"},
            (),
            "were made with weights = torchvision:X, but the network",
        ),
        ({}, ("--network-lr-scale", "-1"), "--network-lr-scale must be 0 or more, but is -1"),
        ({}, ("--compile",), "--compile does not go with --photos"),
        ({}, ("--image-network", ""), "with weights from a file .* give that file"),
        ({}, ("--photos", ""), "--image-network needs --photos"),
        ({}, ("--photos", "missing"), "missing: cannot be read .No such file"),
    ],
)
def test_mistakes_are_told_before_the_training(folder, tmp_path, attributes, arguments, message):
    data = folder / "pooled"
    if attributes:
        data = make_captions_folder(tmp_path / "data")
        (data / "features.h5").unlink()
        known = build_extractor(MODEL, weights=str(folder / "network.pt"), resize="squash", size=33)
        keys = [path.name for path in sorted((folder / "images").iterdir())]
        store = {**known.identity, **attributes}
        write_store(data / "features.h5", keys, dim=known.dim, attributes=store)
    with pytest.raises(UserError, match=message):
        set_up(data, "--arch", "m_rnn_tiny", *joint(folder), *arguments)


def test_missing_and_broken_images_are_named(folder, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    for path in sorted((folder / "images").iterdir())[1:]:
        (images / path.name).write_bytes(path.read_bytes())
    (images / "train1.jpg").write_bytes(b"")
    arguments = ("--arch", "m_rnn_tiny", *joint(folder), "--photos", images)
    with pytest.raises(UserError, match=r"has not 1 of 12, such as 'train0\.jpg'"):
        set_up(folder / "pooled", *arguments, split="train")
    for name in ("a", "b"):
        (images / name).mkdir()
        (images / name / "train0.jpg").write_bytes((images / "train2.jpg").read_bytes())
    with pytest.raises(
        UserError, match=r"each name once, but has not 1 of .* such as 'train0\.jpg'"
    ):
        set_up(folder / "pooled", *arguments, split="train")
    (images / "a" / "train0.jpg").unlink()
    with pytest.raises(UserError, match=r"images/train1\.jpg: is not an image"):
        set_up(folder / "pooled", *arguments, "--preload-features", split="train")
