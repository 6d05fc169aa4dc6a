"""Preprocessing equals torchvision's transforms of a PIL image."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from fairseq_mm.errors import UserError
from fairseq_mm.extract.backbones import (
    default_preprocessing,
    get_weights_entry,
    list_image_models,
)
from fairseq_mm.extract.preprocessing import Preprocessing, with_options


def noise(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def tensor_of(preprocessing: Preprocessing, image: Image.Image) -> torch.Tensor:
    pixels = torch.from_numpy(preprocessing.apply(image).copy())[None]
    return preprocessing.normalized(pixels)[0]


@pytest.mark.parametrize("size", [(50, 31), (31, 44), (45, 45), (33, 30)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_short_side_and_centre_crop_equal_torchvision(size, interpolation):
    ours = Preprocessing(resize_size=23, size=16, interpolation=interpolation)
    mode = transforms.InterpolationMode(interpolation)
    theirs = transforms.Compose(
        [
            transforms.Resize(23, interpolation=mode),
            transforms.CenterCrop(16),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    image = noise(*size)
    torch.testing.assert_close(tensor_of(ours, image), theirs(image))


@pytest.mark.parametrize("size", [(50, 31), (12, 40), (15, 13)])
def test_a_crop_of_a_small_image_is_padded_as_torchvision_pads(size):
    image = noise(*size)
    ours = Preprocessing(resize="none", size=21).apply(image)
    theirs = transforms.CenterCrop(21)(image)
    np.testing.assert_array_equal(ours, np.asarray(theirs))


def test_caffe_means_are_bgr_from_0_to_255():
    preprocessing = with_options(Preprocessing(), size=1, resize="squash", normalize="caffe")
    # R, G, B = 10, 20, 30 -> B - 103.939, G - 116.779, R - 123.68
    values = tensor_of(preprocessing, Image.new("RGB", (3, 2), (10, 20, 30)))[:, 0, 0]
    torch.testing.assert_close(values, torch.tensor([-73.939, -96.779, -113.68]))


def test_options_keep_the_default_proportion_of_resize_and_crop():
    default = Preprocessing(resize_size=256, size=224)
    assert with_options(default) == default
    assert with_options(default, size=448).resize_size == 512
    assert with_options(default, size=448, resize_size=450).resize_size == 450


def test_options_that_do_the_same_become_equal():
    default = Preprocessing(resize_size=256, size=224)
    squashed = with_options(default, resize="squash")
    assert (squashed.resize_size, squashed.size, squashed.crop) == (224, 224, "none")
    assert squashed == with_options(default, resize="squash", crop="none", size=224)
    assert with_options(squashed, size=224) == squashed
    assert with_options(default, crop="none").resize_size == 224


@pytest.mark.parametrize("size", [(4, 400), (400, 4), (5, 402)])
def test_a_long_strip_keeps_its_middle(size):
    image = Image.new("RGB", size, "white")
    width, height = size
    image.paste("red", (width // 2 - 2, height // 2 - 2, width // 2 + 2, height // 2 + 2))
    pixels = Preprocessing(resize_size=20, size=20).apply(image)
    assert pixels.shape == (20, 20, 3)
    assert pixels[10, 8].tolist() == [255, 0, 0]


def test_json_gives_the_same_preprocessing_back():
    preprocessing = with_options(Preprocessing(), normalize="caffe")
    assert Preprocessing.from_json(preprocessing.to_json()) == preprocessing
    with pytest.raises(UserError, match=r"the preprocessing '\{\}': cannot be understood"):
        Preprocessing.from_json("{}")
    with pytest.raises(UserError, match="cannot be understood"):
        Preprocessing.from_json(preprocessing.to_json().replace("resize_size", "resized"))


@pytest.mark.parametrize(
    "change",
    [
        {"resize": "long"},
        {"interpolation": "cubic"},
        {"size": 0},
        {"mean": (0.5,)},
        {"std": (0.5, 0.0, 0.5)},
        {"mean": ("0", 0, 0)},
    ],
)
def test_values_are_checked(change):
    with pytest.raises(UserError, match="is no preprocessing: `resize` must be short or squash"):
        Preprocessing(**change)


@pytest.mark.parametrize("model", list_image_models())
def test_images_are_preprocessed_as_all_weights_of_torchvision_need(model):
    image = noise(97, 61)
    for entry in type(get_weights_entry(model, "DEFAULT")):
        final = with_options(default_preprocessing(model, entry.name))
        ours = final.normalized(torch.from_numpy(final.apply(image)[None].copy()))[0]
        torch.testing.assert_close(ours, entry.transforms()(image), atol=1e-6, rtol=0)
