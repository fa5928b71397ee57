"""What training and extraction share: device, precision, checks of images, fingerprints, images on a device."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from faverage.vision.shards import Shards

Precision = Literal["auto", "float32", "bfloat16"]
Array = np.ndarray[Any, Any]

LARGE_FOR_CPU = 64  # side of images, in pixels, from which on a CPU gains by another layout and precision
_CHUNK = 2048  # images that are hashed or uploaded at a time


def pick_device(device: str | torch.device) -> torch.device:
    """Return the device by name; ``auto`` is the first GPU where there is one, the CPU otherwise."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ValueError(f"unknown device {device!r}: use 'auto', 'cpu', 'cuda' or 'cuda:1'") from None
    if chosen.type != "cuda":
        return chosen
    if not torch.cuda.is_available():
        raise ValueError(f"device '{device}' was asked for, but torch sees no GPU here: use device='cpu' or 'auto'")
    return chosen if chosen.index is not None else torch.device("cuda", torch.cuda.current_device())


def pick_precision(precision: Precision, device: torch.device, side: int = 0) -> torch.dtype:
    """Return the dtype of convolutions; ``auto`` is bfloat16 where the device has it, float32 elsewhere.

    On a CPU only images whose ``side`` is 64 px or more are faster so; at 160 px ResNet-18 trains twice as fast.
    """
    if precision not in ("auto", "float32", "bfloat16"):
        raise ValueError(f"unknown precision {precision!r}: use 'auto', 'float32' or 'bfloat16'")
    if precision == "auto" and device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    if precision == "auto" and device.type == "cpu" and side >= LARGE_FOR_CPU:
        units = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # an older torch may not know them
        return torch.bfloat16 if any(getattr(torch.cpu, unit, bool)() for unit in units) else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def pick_layout(channels_last: bool | Literal["auto"], device: torch.device) -> torch.memory_format:
    """Return the memory format; ``auto`` is channels last on a GPU only.

    On some CPUs oneDNN corrupts memory in the backward pass of a 1x1 convolution with stride 2 and 8 channels last.
    """
    wanted = device.type == "cuda" if channels_last == "auto" else channels_last
    return torch.channels_last if wanted else torch.contiguous_format


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Return the context in which a backbone computes in ``dtype``."""
    if dtype == torch.float32:
        return nullcontext()
    # without the cache of cast weights, which would outlive a captured CUDA graph
    return torch.autocast(device.type, dtype, cache_enabled=False)


@contextmanager
def fast_convolutions(device: torch.device) -> Iterator[None]:
    """On a GPU, make it the current one, let cuDNN try its algorithms and float32 products use TF32; undone after."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    torch.set_float32_matmul_precision("high")
    try:
        with torch.cuda.device(device):
            yield
    finally:
        torch.backends.cudnn.benchmark = before[0]
        torch.set_float32_matmul_precision(before[1])


def move(module: nn.Module, device: torch.device | str, layout: torch.memory_format) -> nn.Module:
    """Move a module, in place, and lay out its four-dimensional weights."""
    anything: Any = module  # the memory format is missing in the types of Module.to
    anything.to(device=device, memory_format=layout)
    return module


def check_images(images: Any) -> None:
    """Raise ValueError unless ``images`` is a uint8 array ``(n, S, S, 3)``, or several as ``Shards``."""
    if not isinstance(images, np.ndarray | Shards):
        raise ValueError(f"images must be a NumPy array (or memory map), got {type(images).__name__}")
    shape = images.shape
    if images.dtype != np.uint8 or len(shape) != 4 or shape[3] != 3 or shape[1] != shape[2]:
        raise ValueError(f"images must be uint8 of shape (n, S, S, 3), got {images.dtype} of shape {shape}")


def check_indices(indices: Any, n: int) -> Array:
    """Return ``indices`` ``(m,)`` as int64 rows of n images; all of them if None."""
    if indices is None:
        return np.arange(n)
    rows = np.asarray(indices)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ValueError(f"indices must be a list of whole numbers, got {rows.dtype} of shape {rows.shape}")
    if rows.size and (rows.min() < 0 or rows.max() >= n):
        raise ValueError(f"indices must lie in 0 … {n - 1}, found {rows.min()} … {rows.max()}")
    return rows.astype(np.int64)


def fingerprint_images(images: Array | Shards, rows: Array) -> str:
    """Return a hash of the ``rows`` ``(m,)`` of images ``(n, S, S, 3)``, of every byte."""
    digest = hashlib.blake2b(repr((images.shape[1:], len(rows))).encode(), digest_size=16)
    for start in range(0, len(rows), _CHUNK):
        digest.update(np.ascontiguousarray(images[rows[start : start + _CHUNK]]).data)
    return digest.hexdigest()


def fingerprint_array(array: Array) -> str:
    """Return a hash of a small array of any shape."""
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).hexdigest()


def fingerprint_weights(module: nn.Module) -> str:
    """Return a hash of a module's class and of all its tensors."""
    digest = hashlib.blake2b(type(module).__qualname__.encode(), digest_size=16)
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


class Store:
    """Chosen rows of an image array, ready to be gathered: whole on a GPU where it fits, in its memory map otherwise.

    Args:
        images: uint8 ``(n, S, S, 3)``.
        rows: ``(m,)``, which of them, in which order; row 0 of the store is ``images[rows[0]]``.
        device: where the gathered batches go.
    """

    def __init__(self, images: Array | Shards, rows: Array, device: torch.device) -> None:
        self.images, self.rows = images, rows
        self.resident: Tensor | None = None
        if device.type != "cuda":
            return
        free, _ = torch.cuda.mem_get_info(device)
        if len(rows) * int(np.prod(images.shape[1:])) > free // 2:
            return
        self.resident = torch.empty((len(rows), *images.shape[1:]), dtype=torch.uint8, device=device)
        for start in range(0, len(rows), _CHUNK):
            part = images[rows[start : start + _CHUNK]]
            self.resident[start : start + len(part)].copy_(torch.from_numpy(part))

    def take(self, index: Tensor, out: Tensor) -> None:
        """Write the images of rows ``index`` ``(b,)`` of the store into ``out`` ``(b, S, S, 3)``.

        The index must be on the GPU if the images are resident there, on the CPU otherwise.
        """
        if self.resident is not None:
            torch.index_select(self.resident, 0, index, out=out)
        else:
            out.copy_(torch.from_numpy(self.images[self.rows[index.numpy()]]))
