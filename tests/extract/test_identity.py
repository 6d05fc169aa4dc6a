"""Two extractors are the same, or the first difference is named."""

import numpy as np
import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.extract.weights import check_same_extractor


def identity(**changes: object) -> dict[str, object]:
    return {
        "extractor": "resnet18",
        "weights": "ab" * 32,
        "layer": "layer4",
        "grid": 0,
        "preprocessing": Preprocessing().to_json(),
        **changes,
    }


def test_the_same_extractor_passes_whatever_the_store_made_of_the_types():
    stored = {**identity(), "grid": np.int64(0), "weights": b"ab" * 32, "created": "yesterday"}
    check_same_extractor(stored, identity())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extractor": "vgg16"}, "extractor = resnet18, but the given ones with vgg16"),
        ({"weights": "cd" * 32}, "weights = abababababab..., but the given ones with cdcdcdcdcdcd"),
        ({"layer": "layer3"}, "layer = layer4, but the given ones with layer3"),
        ({"grid": True}, "grid = 0, but the given ones with 1"),
        (
            {"preprocessing": Preprocessing(size=225).to_json()},
            "preprocessing: size = 224, but .* with 225",
        ),
    ],
)
def test_the_first_difference_is_named(change, message):
    with pytest.raises(UserError, match=f"another extractor: .* were made with {message}"):
        check_same_extractor(identity(), identity(**change))


def test_digests_are_compared_where_both_are_recorded_and_libraries_are_not():
    one, two = (identity(weights_digest="names:" + x * 32) for x in ("ab", "cd"))
    with pytest.raises(UserError, match=r"weights_digest = abababababab\.\.\., but .* with cdcdcd"):
        check_same_extractor(one, two)
    check_same_extractor(one, identity(weights_digest="0" * 64))  # of an earlier version
    check_same_extractor({**one, "library": "timm 1.0"}, {**one, "library": "timm 1.1"})


def test_an_unknown_extractor_is_refused():
    with pytest.raises(UserError, match=r"old\.h5: no `extractor` is recorded"):
        check_same_extractor({}, identity(), recorded_by="old.h5")
    with pytest.raises(UserError, match=r"the given ones: no `layer` is recorded"):
        check_same_extractor(identity(), {k: v for k, v in identity().items() if k != "layer"})
