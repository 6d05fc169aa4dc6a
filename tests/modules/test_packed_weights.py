"""Linear maps with packed weights against the plain product."""

import gc

import pytest
import torch
from torch import nn

from fairseq_mm.errors import UserError
from fairseq_mm.modules import packed_weights
from fairseq_mm.modules.linear import WeightNormalized, linear
from fairseq_mm.modules.packed_weights import can_pack, pack_weights

pytestmark = pytest.mark.skipif(not can_pack(), reason="this PyTorch packs no weights")
SIZES = (512, 384)


@pytest.fixture
def products(monkeypatch):
    """List of the numbers of vectors of all products with packed weights."""
    found = []
    original = torch.ops.mkldnn._linear_pointwise

    class Ops:
        _reorder_linear_weight = torch.ops.mkldnn._reorder_linear_weight

        def _linear_pointwise(self, x, *others):
            found.append(x.numel() // x.size(-1))
            return original(x, *others)

    monkeypatch.setattr(torch.ops, "mkldnn", Ops())
    return found


def model(bias=True):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(*SIZES, bias=bias)).eval()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2,), (40,), (3, 5), (1, 700), (4, 0)])
def test_equals_the_plain_product(products, bias, shape):
    layers = model(bias)
    x = torch.randn(*shape, SIZES[0])
    with torch.no_grad():
        expected = layers(x)
        pack_weights(layers)
        torch.testing.assert_close(layers(x), expected)
        # without the layer, as the modules of this package call it
        torch.testing.assert_close(linear(x, layers[0].weight, layers[0].bias), expected)
    assert products == ([x.numel() // SIZES[0]] * 2 if x.numel() else [])


def test_a_changed_weight_is_packed_anew(products):
    layers = model()
    pack_weights(layers)
    x = torch.randn(4, SIZES[0])
    with torch.no_grad():
        before = layers(x)
        layers[0].weight.mul_(2)
        torch.testing.assert_close(layers(x) - layers[0].bias, 2 * (before - layers[0].bias))
        layers[0].weight.data = torch.zeros(SIZES[::-1])
        torch.testing.assert_close(layers(x), layers[0].bias.expand(4, -1))
        layers.load_state_dict(model().state_dict())
        torch.testing.assert_close(layers(x), before)
    assert products == [4] * 4


def test_gradients_other_dtypes_and_single_vectors_use_the_weight_itself(products):
    layers = model()
    pack_weights(layers)
    layers(torch.randn(4, SIZES[0])).sum().backward()
    assert layers[0].weight.grad is not None
    with torch.no_grad():
        layers(torch.randn(1, SIZES[0]))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layers(torch.randn(4, SIZES[0])).dtype == torch.bfloat16
        x = torch.randn(4, SIZES[0], dtype=torch.float64)
        assert layers.double()(x).dtype == torch.float64
    assert products == []


def test_folded_weights_are_packed(products):
    layer = WeightNormalized(*SIZES[::-1])
    layer.fold()
    pack_weights(layer)
    x = torch.randn(5, SIZES[0])
    with torch.no_grad():
        expected = x @ layer.folded.t() + layer.bias
        torch.testing.assert_close(linear(x, layer.weight(), layer.bias), expected)
    assert products == [5]


def test_the_packed_copy_goes_with_its_weight():
    layers = model()
    gc.collect()
    before = len(packed_weights._registry)
    pack_weights(layers)
    with torch.no_grad():
        layers(torch.randn(4, SIZES[0]))
    assert len(packed_weights._registry) == before + 1
    del layers
    gc.collect()
    assert len(packed_weights._registry) == before


@pytest.mark.parametrize(("dtype", "error"), [("bfloat16", 0.01), ("int8", 0.03)])
@pytest.mark.parametrize("bias", [True, False])
def test_smaller_types_are_close(dtype, error, bias):
    if not can_pack(dtype):
        pytest.skip(f"this PyTorch packs no {dtype}")
    layers = model(bias)
    x = torch.randn(3, 5, SIZES[0])
    with torch.no_grad():
        expected = layers(x)
        pack_weights(layers, dtype)
        found = layers(x)
        difference = (found - expected).norm() / expected.norm()
        assert 0 < difference < error
        # a vector's result does not depend on the vectors beside it
        scaled = torch.cat([100 * x, x, torch.zeros(1, 5, SIZES[0])])
        torch.testing.assert_close(layers(scaled)[3:6], found, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(layers(x[:1, :1]), found[:1, :1], rtol=1e-6, atol=1e-6)
        assert layers(scaled)[6].abs().max() <= (layers[0].bias.abs().max() if bias else 0)
        pack_weights(layers)
        torch.testing.assert_close(layers(x), expected)


def test_int8_equals_the_product_of_rounded_numbers():
    if not can_pack("int8"):
        pytest.skip("this PyTorch packs no int8")
    layers = model()
    x = torch.randn(4, SIZES[0])
    weight = layers[0].weight.detach()
    with torch.no_grad():
        pack_weights(layers, "int8")
        found = layers(x)
    for row, vector in zip(found, x):
        scale = vector.abs().max() / 127
        rounded = (vector / scale).round()
        for output in range(0, len(weight), 50):
            own = weight[output].abs().max() / 127
            product = float((rounded * (weight[output] / own).round()).sum()) * float(scale * own)
            assert float(row[output]) == pytest.approx(
                product + float(layers[0].bias[output]), abs=1e-4
            )


def test_a_processor_whose_sums_are_cut_off_is_refused(monkeypatch):
    if not can_pack("int8"):
        pytest.skip("this PyTorch packs no int8")
    exact = packed_weights._multiply_integers
    monkeypatch.setattr(
        packed_weights, "_multiply_integers", lambda *args: exact(*args).clamp(max=32767)
    )
    packed_weights._multiplies_integers_exactly.cache_clear()
    try:
        with pytest.raises(UserError, match="a processor with VNNI or AMX"):
            pack_weights(model(), "int8")
    finally:
        packed_weights._multiplies_integers_exactly.cache_clear()


@pytest.mark.parametrize("is_fast", [False, True])
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "int8"])
@torch.no_grad()
def test_keys_of_small_weights_are_kept_in_bfloat16(monkeypatch, dtype, is_fast):
    if dtype and not can_pack(dtype):
        pytest.skip(f"this PyTorch packs no {dtype}")
    monkeypatch.setattr(packed_weights, "_multiplies_bfloat16", lambda: is_fast)
    layers = model()
    if dtype:
        pack_weights(layers, dtype)
    # half precision of another kind, as under autocast, stays as it is
    for x in (torch.randn(3, SIZES[1]), torch.randn(3, SIZES[1]).half()):
        kept = packed_weights.shrink_cached(x, layers[0].weight)
        if is_fast and dtype in ("bfloat16", "int8") and x.dtype == torch.float32:
            assert torch.equal(kept, x.bfloat16())
        else:
            assert kept is x
        with torch.enable_grad():
            assert packed_weights.shrink_cached(x, layers[0].weight) is x
        with torch.autocast("cpu"):
            assert packed_weights.shrink_cached(x, layers[0].weight) is x
    # the registry still knows the weight of a model that was cast
    layers.double()
    assert packed_weights.shrink_cached(x.float(), layers[0].weight).dtype == torch.float32
