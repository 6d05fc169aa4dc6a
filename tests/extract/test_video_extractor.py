"""A video's rows depend on it alone, and the recorded identity builds its extractor again."""

import numpy as np
import pytest
import torch
from numerics import assert_close
from PIL import Image
from torchvision.models import video
from toy_videos import frames_of, write_video

from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import build_extractor, build_extractor_from_identity
from fairseq_mm.extract.videos import VideoReader

SMALL = {"size": 16, "frames": 4}


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> str:
    torch.manual_seed(11)
    path = tmp_path_factory.mktemp("weights") / "mc3_18.pt"
    torch.save(video.mc3_18(weights=None).state_dict(), path)
    return str(path)


@pytest.fixture(scope="module")
def extractor(weights):
    return build_extractor("mc3_18", weights=weights, **SMALL)


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> list[str]:
    """Of 4, 1, 3 and 2 clips of 4 frames."""
    folder = tmp_path_factory.mktemp("videos")
    counts = (17, 3, 12, 11)
    return [
        write_video(folder / f"{i}.mp4", frames_of(count, 40 + 2 * i, 50 - 4 * i, seed=i))
        for i, count in enumerate(counts)
    ]


def test_rows_equal_plain_torchvision_code(extractor, videos, weights):
    network = video.mc3_18(weights=None).eval()
    network.load_state_dict(torch.load(weights))
    network.fc = torch.nn.Identity()
    images = [image for _begin, _end, image in VideoReader(videos[2]).frames()]
    frames = torch.stack([torch.from_numpy(np.array(image)) for image in images])
    frames = frames.permute(0, 3, 1, 2)  # [12, 3, height, width]
    # 16 / 112 of torchvision's 128 x 171
    frames = torch.nn.functional.interpolate(frames.float(), (18, 24), mode="bilinear")
    frames = frames.round()[:, :, 1:17, 4:20] / 255
    mean = torch.tensor([0.43216, 0.394666, 0.37645])[:, None, None]
    std = torch.tensor([0.22803, 0.22145, 0.216989])[:, None, None]
    clips = ((frames - mean) / std).view(3, 4, 3, 16, 16).transpose(1, 2)
    with torch.inference_mode():
        expected = network(clips).numpy()
    (rows,) = extractor.extract(videos[2:3])
    assert rows.shape == (3, 512)
    # a pixel between two grey levels may be rounded to the other one
    np.testing.assert_allclose(rows, expected, rtol=5e-3, atol=5e-3)


def test_clips_of_several_videos_share_a_batch_that_changes_nothing(extractor, videos, monkeypatch):
    alone = [extractor.extract([path])[0] for path in videos]
    assert [len(rows) for rows in alone] == [4, 1, 3, 2]
    sizes = []
    compute = extractor._compute
    monkeypatch.setattr(
        extractor, "_compute", lambda clips: sizes.append(len(clips)) or compute(clips)
    )
    for one, other in zip(extractor.extract(videos, batch_size=3), alone):
        assert_close(one, other)
    assert sizes == [3, 3, 3, 1]
    assert extractor.extract([]) == []


def test_a_video_is_a_path_its_content_or_a_binary_file(extractor, videos):
    (expected,) = extractor.extract(videos[2:3])
    with open(videos[2], "rb") as file:
        content = file.read()  # the position is at the end
        for rows in extractor.extract([content, file]):
            assert_close(rows, expected)
        assert not file.closed


def test_the_recorded_identity_builds_the_extractor_again(extractor, videos, weights):
    assert extractor.identity["frame_rate"] == "native"
    assert (extractor.identity["stride"], extractor.identity["frames_per_clip"]) == (4, 4)
    again = build_extractor_from_identity(extractor.identity, weights, reads="videos")
    assert again.identity == extractor.identity
    np.testing.assert_array_equal(again.extract(videos[:1])[0], extractor.extract(videos[:1])[0])


def test_all_settings_are_built_again(videos):
    one = build_extractor(
        "r2plus1d_18", weights="none", seed=5, fps=12.5, stride=2, normalize="kinetics", **SMALL
    )
    assert one.identity["frame_rate"] == 12.5
    again = build_extractor_from_identity(one.identity, reads="videos")
    (rows,), (expected,) = again.extract(videos[:1]), one.extract(videos[:1])
    assert rows.shape == (3, 512)  # 17 frames become 9
    np.testing.assert_array_equal(rows, expected)


def test_another_extractor_is_refused(extractor, tmp_path):
    identity = extractor.identity
    with pytest.raises(UserError, match=r"made by mc3_18 with weights from a file .*give that f"):
        build_extractor_from_identity(identity, reads="videos")
    (tmp_path / "other.pt").write_bytes(b"other")
    with pytest.raises(UserError, match=r"other\.pt: must have the SHA-256 .*, but has d9298a10d"):
        build_extractor_from_identity(identity, str(tmp_path / "other.pt"), reads="videos")
    with pytest.raises(UserError, match="the weights 'ftp:x' of mc3_18 are of no known kind"):
        build_extractor_from_identity({**identity, "weights": "ftp:x"}, reads="videos")
    with pytest.raises(UserError, match="no `weights` is recorded"):
        build_extractor_from_identity({"extractor": "mc3_18"}, reads="videos")
    with pytest.raises(UserError, match="made by mc3_18, which reads videos, not images"):
        build_extractor_from_identity(identity)
    images = {**identity, "extractor": "resnet18", "preprocessing": "{}"}
    with pytest.raises(UserError, match="made by resnet18, which reads images, not videos"):
        build_extractor_from_identity(images, reads="videos")


def test_an_unreadable_video_is_named(extractor, tmp_path, videos):
    (tmp_path / "bad.mp4").write_bytes(b"none")
    with pytest.raises(UserError, match=r"bad\.mp4: is no video"):
        extractor.extract([videos[0], tmp_path / "bad.mp4"])
    with pytest.raises(UserError, match="video 1: is empty"):
        extractor.extract([videos[0], b""])


def test_clips_that_the_network_cannot_take_are_named(weights):
    with pytest.raises(
        UserError, match=r"mvit_v2_s, layer pooled: cannot be run on 1 clips of 4 frames of 32 x"
    ):
        build_extractor("mvit_v2_s", weights="none", size=32, frames=4)


def test_cuda_without_a_device_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="--device cuda: PyTorch finds no CUDA device"):
        build_extractor("mc3_18", weights="none", device="cuda", **SMALL)


def test_the_image_itself_matters(extractor, tmp_path):
    still = np.asarray(Image.new("RGB", (48, 36), "red"))
    path = write_video(tmp_path / "red.mp4", np.stack([still] * 8))
    first, second = extractor.extract([path])[0]
    np.testing.assert_allclose(first, second, atol=1e-2)
    (other,) = extractor.extract([write_video(tmp_path / "w.mp4", frames_of(4))])
    assert np.abs(first - other[0]).max() > 0.1
