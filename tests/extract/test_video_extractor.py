"""A video's rows depend on it alone, and the recorded identity builds its extractor again."""

import numpy as np
import pytest
import torch
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


def test_the_recorded_identity_builds_the_extractor_again(extractor, videos, weights):
    assert extractor.identity["frame_rate"] == "native"
    assert (extractor.identity["stride"], extractor.identity["frames_per_clip"]) == (4, 4)
    again = build_extractor_from_identity(extractor.identity, weights, reads="videos")
    assert again.identity == extractor.identity
    np.testing.assert_array_equal(again.extract(videos[:1])[0], extractor.extract(videos[:1])[0])


def test_an_extractor_of_images_is_refused(extractor):
    identity = extractor.identity
    with pytest.raises(UserError, match="made by mc3_18, which reads videos, not images"):
        build_extractor_from_identity(identity)
    images = {**identity, "extractor": "resnet18", "preprocessing": "{}"}
    with pytest.raises(UserError, match="made by resnet18, which reads images, not videos"):
        build_extractor_from_identity(images, reads="videos")
