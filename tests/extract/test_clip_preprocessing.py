"""Frames become clips: how many, with which pixels, and what the options change."""

import json

import numpy as np
import pytest
import torch
from numerics import assert_close
from PIL import Image
from torchvision.transforms._presets import VideoClassification
from torchvision.transforms.functional import InterpolationMode

from fairseq_mm.errors import UserError
from fairseq_mm.extract.backbones import default_clip_preprocessing
from fairseq_mm.extract.clip_preprocessing import (
    ClipPreprocessing,
    with_clip_options,
)

LEVELS = 250


def grey(level: int) -> Image.Image:
    return Image.new("RGB", (9, 7), (level, level, level))


def levels(preprocessing: ClipPreprocessing, num_frames: int) -> list[list[int]]:
    """Which frames each clip has."""
    clips = list(preprocessing.clips(grey(i % LEVELS) for i in range(num_frames)))
    assert all(clip.shape == preprocessing.input_shape for clip in clips)
    num_clips = 1 + (num_frames - preprocessing.frames) // preprocessing.stride
    assert len(clips) == max(1, num_clips)
    return [clip[:, 0, 0, 0].tolist() for clip in clips]


def small(**options) -> ClipPreprocessing:
    return ClipPreprocessing(**{"resize_size": 5, "size": 5, "frames": 4, "stride": 4, **options})


@pytest.mark.parametrize(("num_frames", "num_clips"), [(325, 20), (320, 20), (31, 1), (5, 1)])
def test_every_16_frames_make_a_clip_and_the_rest_is_left_out(num_frames, num_clips):
    clips = levels(small(frames=16, stride=16), num_frames)
    assert len(clips) == num_clips
    assert [clip[0] for clip in clips] == [16 * i % LEVELS for i in range(num_clips)]


def test_a_stride_makes_clips_overlap_or_leaves_frames_out():
    assert levels(small(stride=2), 9) == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]]
    assert levels(small(stride=6), 16) == [[0, 1, 2, 3], [6, 7, 8, 9], [12, 13, 14, 15]]


def test_a_video_shorter_than_a_clip_is_repeated_from_its_beginning():
    assert levels(small(frames=7, stride=7), 3) == [[0, 1, 2, 0, 1, 2, 0]]
    assert levels(small(frames=3, stride=3), 1) == [[0, 0, 0]]


def test_frames_are_taken_one_by_one():
    taken = []

    def frames():
        for i in range(60):
            taken.append(i)
            yield grey(i)

    clips = small(stride=2).clips(frames())
    for num_taken in (4, 6, 8):
        next(clips)
        assert len(taken) == num_taken


@pytest.mark.parametrize(
    "options",
    [
        {"crop_size": (24, 24), "resize_size": (28, 37)},
        {"crop_size": (24, 24), "resize_size": (28,), "mean": (0.45,) * 3},
        {"crop_size": (20, 20), "resize_size": (24, 24)},
    ],
)
@pytest.mark.parametrize("size", [(50, 41), (31, 64), (19, 22)])
def test_clips_equal_torchvisions_transform(options, size):
    pixels = np.random.default_rng(3).integers(0, 255, (3, size[1], size[0], 3), dtype=np.uint8)
    reference = VideoClassification(**options, interpolation=InterpolationMode.BILINEAR)
    expected = reference(torch.from_numpy(pixels).permute(0, 3, 1, 2))  # [3, frames, h, w]
    height, *width = options["resize_size"]
    preprocessing = ClipPreprocessing(
        resize="squash" if width else "short",
        resize_size=height,
        resize_width=width[0] if width else 0,
        size=options["crop_size"][0],
        antialias=False,
        frames=3,
        stride=3,
        mean=tuple(reference.mean),
        std=tuple(reference.std),
    )
    (clip,) = preprocessing.clips(Image.fromarray(frame) for frame in pixels)
    found = preprocessing.normalized(torch.from_numpy(clip[None]))[0]
    # halves may round differently: one grey level of 255, not two, and seldom
    torch.testing.assert_close(found, expected, rtol=0, atol=1.5 / 255 / min(reference.std))
    assert ((found - expected).abs() > 1e-5).float().mean() < 0.01


def test_the_resnext_gets_pixels_of_0_to_255_less_the_mean_of_activitynet():
    preprocessing = default_clip_preprocessing("resnext101_3d", None)
    assert preprocessing.input_shape == (16, 112, 112, 3)
    clip = np.zeros((1, 16, 112, 112, 3), dtype=np.uint8)
    clip[..., 0], clip[..., 1], clip[..., 2] = 255, 100, 7
    values = preprocessing.normalized(torch.from_numpy(clip))[0, :, 3, 50, 60]
    assert_close(values, torch.tensor([255 - 114.7748, 100 - 107.7354, 7 - 99.475]))
    # short side 112, then the centre
    frame = np.zeros((224, 448, 3), dtype=np.uint8)
    frame[:, 112:336] = 200
    assert preprocessing.apply(Image.fromarray(frame))[:, 2:-2].min() == 200


def test_options_change_what_they_name():
    r3d = default_clip_preprocessing("r3d_18", "DEFAULT")
    assert with_clip_options(r3d) == r3d
    smaller = with_clip_options(r3d, size=56)
    assert (smaller.resize_size, smaller.resize_width, smaller.size) == (64, 86, 56)
    assert with_clip_options(r3d, frames=8).stride == 8
    assert with_clip_options(r3d, frames=8, stride=3).stride == 3
    assert with_clip_options(r3d, stride=8).frames == 16
    assert with_clip_options(r3d, fps=12.5).fps == 12.5
    assert with_clip_options(with_clip_options(r3d, fps=12.5), fps=0).fps == 0
    squashed = with_clip_options(r3d, resize="squash", resize_size=30, size=30)
    assert (squashed.crop, squashed.input_shape[1:]) == ("none", (30, 30, 3))
    assert with_clip_options(r3d, crop="none").input_shape == (16, 112, 112, 3)
    assert with_clip_options(r3d, resize="short").resize_size == 112
    kinetics = with_clip_options(r3d, normalize="kinetics")
    assert (kinetics.mean[0], kinetics.scale) == (110.63541, 255)


def test_json_gives_the_same_again():
    preprocessing = small(fps=7.5, stride=2, resize_width=6, resize="squash")
    assert ClipPreprocessing.from_json(preprocessing.to_json()) == preprocessing
    assert json.loads(preprocessing.to_json())["fps"] == 7.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "none"}, "and all frames of one size .*--crop none"),
        ({"frames": 0}, "`frames` must be 1 to 1024, .* but are 0, 16, 0"),
        ({"frames": 10**6}, "`frames` must be 1 to 1024"),
        ({"stride": 0}, "`stride` 1 or more, .* but are 16, 0, 0"),
        ({"fps": 1e-9}, "`fps` 0 or 0.01 to 1000, .* but are 16, 16, 1e-09"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        ClipPreprocessing(**options)
