"""Decoding on a GPU, run with torchvision's decoder for CPUs: same pixels, files and errors."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.errors import UserError
from fairseq_mm.extract import extractor as extractor_module
from fairseq_mm.extract import gpu_decoding, runner
from fairseq_mm.extract.extractor import build_extractor
from fairseq_mm.extract.gpu_decoding import GpuDecoder
from fairseq_mm.extract.identity import check_same_extractor
from fairseq_mm.extract.jpeg_files import JpegFile, find_jpeg
from fairseq_mm.extract.media_list import list_images
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.extract.readers import Unreadable

CPU = torch.device("cpu")
SIZE = 32


def smooth(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def encode(image: Image.Image, image_format: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def assert_similar(one: np.ndarray, other: np.ndarray) -> None:
    """Check that features differ by less than 0.5 %, since pixels may differ by 1 of 255."""
    assert np.linalg.norm(one - other) < 5e-3 * np.linalg.norm(other)


def turned(image: Image.Image) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(image, exif=exif)


@pytest.fixture
def on_gpu(monkeypatch):
    """Extractor that decodes as on a GPU, and computes in a thread as with a GPU."""
    monkeypatch.setattr(extractor_module, "check_gpu_decoding", lambda device: None)
    monkeypatch.setattr(runner, "_has_gpu", lambda extractor: True)
    return build_extractor("resnet18", weights="none", size=SIZE, decode_on="gpu")


@pytest.fixture(scope="module")
def by_pillow():
    return build_extractor("resnet18", weights="none", size=SIZE)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("crop", ["center", "center_floor", "none"])
@pytest.mark.parametrize("resize", ["short", "none"])
def test_resizing_has_the_pixels_of_pillow(resize, crop, interpolation):
    preprocessing = Preprocessing(
        resize=resize, crop=crop, interpolation=interpolation, resize_size=41, size=35
    )
    decoder = GpuDecoder(preprocessing, CPU)
    for width, height in ((97, 64), (64, 97), (30, 20), (20, 900)):
        image = smooth(width, height)
        if (resize, crop, height) == ("short", "none", 900):
            with pytest.raises(UserError) as refused:
                preprocessing.apply(image)
            assert decoder._preprocess([to_tensor(image)]) == [str(refused.value)]
            continue
        expected = preprocessing.apply(image)
        (pixels,) = decoder._preprocess([to_tensor(image)])
        difference = np.abs(pixels.numpy().astype(int) - expected)
        assert difference.max() <= 1
        assert (difference > 0).mean() < 0.02  # halves that the last bit rounds


def test_both_sides_are_resized_alike():
    preprocessing = Preprocessing(resize="squash", crop="none", resize_size=24)
    image = smooth(60, 33)
    (pixels,) = GpuDecoder(preprocessing, CPU)._preprocess([to_tensor(image)])
    assert np.abs(pixels.numpy().astype(int) - preprocessing.apply(image)).max() <= 1


def to_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


IMAGE = smooth(60, 40)
UNUSUAL = {
    "truncated": encode(IMAGE)[:-2],
    "progressive": encode(IMAGE, progressive=True),
    "rotated": turned(IMAGE),
    "grey": encode(IMAGE.convert("L")),
    "cmyk": encode(IMAGE.convert("CMYK")),
    "png": encode(IMAGE, "PNG"),
    "empty": b"",
    "head only": b"\xff\xd8\xff\xd9",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_pillow_decodes_unusual_files(name):
    assert find_jpeg(UNUSUAL[name], max_pixels=10_000) is None


def test_usual_files_are_left_to_the_gpu_up_to_the_limit_of_pixels():
    for options in ({}, {"subsampling": 0}, {"optimize": True}, {"exif": Image.Exif()}):
        content = encode(IMAGE, **options)
        found = find_jpeg(content, max_pixels=2400)
        assert (found.width, found.height) == (60, 40)
        assert found.content.tobytes() == content
    assert find_jpeg(content, max_pixels=2399) is None


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "photos").mkdir()
    for i in range(9):
        image = smooth(60 + i % 2, 50, seed=i)
        (tmp_path / "photos" / f"{i}.jpg").write_bytes(encode(image))
    for name, content in UNUSUAL.items():
        (tmp_path / "photos" / f"{name}.jpg").write_bytes(content)
    return tmp_path / "photos"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_of_all_kinds_of_files_has_pillows_features(
    folder, tmp_path, on_gpu, by_pillow, workers
):
    files = list_images([str(folder)])
    outputs = []
    for name, extractor in (("gpu", on_gpu), ("cpu", by_pillow)):
        outputs.append(str(tmp_path / f"{name}.h5"))
        summary = runner.extract_to_store(
            extractor,
            extractor.reader(),
            files,
            outputs[-1],
            batch_size=4,
            workers=workers,
            dtype="float32",
        )
        assert summary[:2] == (14, 3)
        assert (summary.seconds_decoding > 0) == (name == "gpu")
    one, other = map(FeatureStore, outputs)
    assert one.ids == other.ids
    with pytest.raises(AssertionError):
        assert_similar(one.read("0.jpg"), other.read("1.jpg"))
    for key in one.ids:
        assert_similar(one.read(key), other.read(key))
        assert one.get_source(key) == other.get_source(key)
    lists = [Path(f"{output}.unreadable.tsv").read_text() for output in outputs]
    assert lists[0] == lists[1]
    with pytest.raises(UserError, match="decoder = nvjpeg, but the given ones with Pillow"):
        check_same_extractor(one.attributes, other.attributes)


def test_files_that_fail_only_in_decoding_are_unreadable_and_the_others_are_not(
    folder, tmp_path, on_gpu, monkeypatch
):
    broken = encode(smooth(60, 50, seed=3)).replace(b"\xff\xda", b"\xff\xe0")
    (folder / "3.jpg").write_bytes(broken)
    monkeypatch.setattr(
        "fairseq_mm.extract.jpeg_files.find_jpeg",
        lambda content, max_pixels: JpegFile(np.frombuffer(content, np.uint8).copy(), 60, 50),
    )
    files = [file for file in list_images([str(folder)]) if file.key in ("2.jpg", "3.jpg", "4.jpg")]
    output = str(tmp_path / "f.h5")
    options = {"batch_size": 2, "workers": 0}
    summary = runner.extract_to_store(on_gpu, on_gpu.reader(), files, output, **options)
    assert (summary.num_items, summary.num_unreadable) == (2, 1)
    assert FeatureStore(output).ids == ["2.jpg", "4.jpg"]
    (line,) = Path(f"{output}.unreadable.tsv").read_text().splitlines()
    path, reason, size, *_ = line.split("\t")
    assert (path, int(size)) == (str(folder / "3.jpg"), len(broken))
    (event,) = build_extractor("resnet18", weights="none", size=SIZE).reader().events(files[1])
    assert isinstance(event, Unreadable)
    assert reason == event.reason
    options.update(strict=True, overwrite=True)
    with pytest.raises(UserError, match=r"3\.jpg: "):
        runner.extract_to_store(on_gpu, on_gpu.reader(), files, output, **options)
    with pytest.raises(UserError, match=r"3\.jpg: "):
        on_gpu.extract([file.path for file in files])


def test_large_batches_are_decoded_in_parts(on_gpu, by_pillow, monkeypatch, folder):
    paths = [str(folder / f"{i}.jpg") for i in range(5)]
    expected = by_pillow.extract(paths)
    monkeypatch.setattr(gpu_decoding, "MAX_PIXELS_AT_ONCE", 2 * 61 * 50)
    counts = []
    decode = gpu_decoding.decode_jpegs
    monkeypatch.setattr(
        gpu_decoding,
        "decode_jpegs",
        lambda contents, device: counts.append(len(contents)) or decode(contents, device),
    )
    for rows, other in zip(on_gpu.extract(paths), expected):
        assert_similar(rows, other)
    assert counts == [2, 2, 1]


def test_a_device_that_cannot_decode_is_said_in_one_line(folder, tmp_path, capsys, monkeypatch):
    command = ["extract", str(folder), "--model", "resnet18", "--weights", "none"]
    command += ["--device", "cpu", "--output", str(tmp_path / "f.h5"), "--decode-on", "gpu"]
    assert main(command) == 2
    assert capsys.readouterr().err.endswith(
        "--decode-on gpu: needs a GPU of NVIDIA, but the device is cpu. Leave out --decode-on "
        "gpu, or choose --device cuda.\n"
    )
    assert not list(tmp_path.glob("f.h5*"))

    def fail(contents, device):
        raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support\nC++")

    monkeypatch.setattr(gpu_decoding, "decode_jpegs", fail)
    with pytest.raises(UserError, match=r"cuda \(decode_jpegs_cuda: .* nvJPEG support\)\. Leave"):
        gpu_decoding.check_gpu_decoding(torch.device("cuda"))
    monkeypatch.setattr(gpu_decoding, "decode_jpegs", lambda *_: [torch.zeros(3, 32, 32)])
    with pytest.raises(UserError, match=r"decodes the colour 200, 100, 50 to \[0"):
        gpu_decoding.check_gpu_decoding(torch.device("cuda"))


def test_videos_are_not_decoded_on_a_gpu():
    with pytest.raises(UserError, match="--decode-on gpu: is for models of images"):
        build_extractor("r3d_18", weights="none", decode_on="gpu")
