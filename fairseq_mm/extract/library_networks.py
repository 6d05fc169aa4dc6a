"""Helpers for networks that other libraries build: timm, transformers and open_clip.

The modules ``timm_backbones``, ``hf_backbones`` and ``open_clip_backbones`` use them.
"""

import contextlib
import hashlib
import logging
import socket
import urllib.parse
import urllib.request
import warnings
from collections.abc import Collection, Iterator
from importlib import metadata
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fairseq_mm.errors import UserError, first_line
from fairseq_mm.extract.preprocessing import Preprocessing

# largest difference, in steps of 8-bit pixels, between two implementations of one interpolation
_MAX_ROUNDING = 3
# sizes (width, height) for which the two ways to round the margin of a crop differ, and a small one
_TEST_SIZES = ((301, 224), (224, 307), (77, 50))


_NOT_CACHED = "there is no network, and huggingface_hub's cache does not have it"
# classes of huggingface_hub's errors, whose messages have several lines
_HUB_ERRORS = {
    "GatedRepoError": "its owner gives access on request only; log in with: hf auth login",
    "RepositoryNotFoundError": "there is no such model, or it is private",
    "RevisionNotFoundError": "there is no such revision",
    "LocalEntryNotFoundError": _NOT_CACHED,
    "OfflineModeIsEnabled": _NOT_CACHED,
}


class LibraryRows(nn.Module):
    """Network of timm, transformers or open_clip that returns feature vectors.

    Args:
        network: Network of the library.
        model: Name of the model, for messages.
        grid: Return one vector per position of a grid instead of the pooled vector.
    """

    def __init__(self, network: nn.Module, model: str, *, grid: bool) -> None:
        super().__init__()
        self.network: Any = network
        self.model = model
        self.grid = grid

    def forward(self, images: Tensor) -> Tensor:
        """Compute the N feature vectors of each image; N is 1 without ``grid``.

        Args:
            images: ``[B, 3, height, width]``, normalised.

        Returns:
            rows: ``[B, N, D]`` float32.
        """
        if self.grid:
            rows = self._get_grid(images)
            if rows is None:
                raise UserError(
                    f"--grid: {self.model} has neither a feature map nor tokens of patches."
                )
            return rows.float()
        pooled = self._get_pooled(images)
        is_vector = isinstance(pooled, Tensor) and pooled.dim() == 2
        if not is_vector or len(pooled) != len(images):
            raise UserError(f"--model {self.model}: has no pooled output; use --grid.")
        return pooled.float()[:, None]  # [B, 1, D]

    def _get_pooled(self, images: Tensor) -> Any:
        """Return ``[B, D]``; any other value if the network has no pooled vector."""
        raise NotImplementedError

    def _get_grid(self, images: Tensor) -> Optional[Tensor]:
        """Return ``[B, N, D]`` for N positions; None if the network has no grid."""
        raise NotImplementedError


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the log and the warnings of a library inside the context.

    The libraries log each retry of a download, and warn of tensors that our code checks itself.
    """
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def cached_if_offline() -> Iterator[None]:
    """Let huggingface_hub read only its cache inside the context, if the name of the hub's server
    cannot be resolved.

    Without network, huggingface_hub would retry for half a minute before it reads the cache.
    """
    try:
        from huggingface_hub import constants
    except ImportError:  # open_clip can do without
        yield
        return
    before = constants.HF_HUB_OFFLINE
    if not before and not urllib.request.getproxies():  # a proxy may know more addresses
        try:
            socket.getaddrinfo(urllib.parse.urlparse(constants.ENDPOINT).hostname, 443)
        except OSError:
            constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def describe_hub_error(error: Exception) -> str:
    """Return the reason why a library could not fetch a model, without full stop."""
    cause: Optional[BaseException] = error
    while cause is not None:
        if type(cause).__name__ in _HUB_ERRORS:
            return _HUB_ERRORS[type(cause).__name__]
        cause = cause.__cause__ or cause.__context__
    return first_line(error).rstrip(".")


def describe_library(distribution: str) -> str:
    """Return the name and the version of an installed package, such as ``timm 1.0.31``."""
    return f"{distribution} {metadata.version(distribution)}"


def compute_weights_digest(network: nn.Module, needed: Collection[str]) -> str:
    """Compute a SHA-256 of the values of a network's weights.

    The digest does not depend on the names and the order of the tensors, which change between
    versions of a library, or on the format and the dtype of the file with the weights.

    Args:
        network: Network with float32 weights.
        needed: Names of the tensors that the features depend on.
    """
    digests = []
    for name, tensor in network.state_dict().items():
        # counts of training steps, which not every file has
        if name in needed and tensor.is_floating_point():
            values = tensor.detach().contiguous().numpy()
            shape = ",".join(map(str, values.shape)).encode()
            digests.append(hashlib.sha256(shape + b"|" + values.tobytes()).digest())
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def check_preprocessing(
    preprocessing: Preprocessing, library_apply: Callable[[Image.Image], Tensor], owner: str
) -> None:
    """Check that a preprocessing record gives the same inputs as the preprocessing of a library.

    Args:
        preprocessing: Record to check.
        library_apply: The library's preprocessing, which maps an image to ``[3, height, width]``.
        owner: Name of the library's preprocessing, for the message.
    """
    for width, height in _TEST_SIZES:
        pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
        image = Image.fromarray(pixels)
        ours = preprocessing.normalized(torch.from_numpy(preprocessing.apply(image)[None].copy()))
        try:
            theirs = library_apply(image)
        except Exception as error:  # of any class: some processors need text or further sizes
            raise UserError(f"{owner} cannot be run on an image: {first_line(error)}") from None
        step = preprocessing.scale / 255 / min(preprocessing.std)
        same_shape = theirs.shape == ours[0].shape
        if not same_shape or float((theirs - ours[0]).abs().max()) > _MAX_ROUNDING * step:
            raise UserError(
                f"{owner} does more than resize, crop and normalise an image, so it cannot be "
                "recorded in a feature store."
            )


class _Pair(NamedTuple):
    conv: nn.Conv2d
    norm: nn.BatchNorm2d


@torch.no_grad()
def fold_norms(network: nn.Module, *, side: int) -> None:
    """Merge each batch normalisation into the convolution before it, for evaluation only.

    One run of the network finds the pairs to merge. A second run checks the result: if the output
    differs by more than rounding, for example because another layer also reads the convolution, the
    network is left unchanged.

    Args:
        network: Network in evaluation mode, on a CPU, that maps ``[1, 3, side, side]`` to a
            tensor; changed in place.
        side: Side of the input in pixels.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        return
    images = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    before, pairs = _run_and_pair(network, images)
    names = {module: name for name, module in network.named_modules()}
    replaced: list[tuple[nn.Module, str, nn.Module]] = []

    def replace(old: nn.Module, new: nn.Module) -> None:
        parent_name, _, attribute = names[old].rpartition(".")
        parent = network.get_submodule(parent_name)
        replaced.append((parent, attribute, old))
        setattr(parent, attribute, new)

    for conv, norm in pairs:
        replace(conv, fuse_conv_bn_eval(conv, norm))
        # timm's normalisation with an activation; its dropout does nothing in evaluation
        replace(norm, getattr(norm, "act", nn.Identity()))
    difference = float((network(images) - before).abs().max())
    if not difference <= 1e-3 * float(before.abs().max()):
        for parent, attribute, module in replaced:
            setattr(parent, attribute, module)


def _run_and_pair(network: nn.Module, images: Tensor) -> tuple[Tensor, list[_Pair]]:
    """Run a network, and find the convolutions whose output a batch normalisation reads.

    Returns:
        output: Output of the network.
        pairs: Convolution and normalisation of each pair. Both are called once, and have one of the
            known classes.
    """
    makers: dict[int, tuple[nn.Module, Tensor]] = {}  # holds the tensors: ids stay unique
    calls: dict[nn.Module, int] = {}
    pairs = []

    def note_output(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        calls[module] = calls.get(module, 0) + 1
        makers[id(output)] = (module, output)

    def note_input(module: nn.Module, inputs: tuple) -> None:
        calls[module] = calls.get(module, 0) + 1
        conv, _ = makers.get(id(inputs[0]), (None, None))
        if conv is not None:
            pairs.append(_Pair(conv, module))  # type: ignore[arg-type]

    hooks = []
    for module in network.modules():
        # by name: weights of other subclasses are computed in each call
        if type(module).__name__ in ("Conv2d", "Conv2dSame"):
            hooks.append(module.register_forward_hook(note_output))
        elif type(module).__name__ in ("BatchNorm2d", "BatchNormAct2d"):
            hooks.append(module.register_forward_pre_hook(note_input))
    try:
        output = network(images)
    finally:
        for hook in hooks:
            hook.remove()
    return output, [pair for pair in pairs if calls[pair.conv] == calls[pair.norm] == 1]
