"""Networks on disk: one safetensors file whose header carries the configuration as JSON. Never pickle."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from faverage.network import AFA

__all__ = ["load", "save"]

FORMAT = 1


def save(network: AFA, path: str | Path) -> Path:
    """Write an AFA network to ``path``; the file appears whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = save(AFA(2, 3, structure="per_class"), f"{folder}/fuser.safetensors")
    ...     load(file).structure
    'per_class'
    """
    if not isinstance(network, AFA):
        raise ValueError(f"network must be an AFA, got {type(network).__name__}")
    return write_tensors(path, "AFA", network.config(), network.state_dict())


def load(path: str | Path) -> AFA:
    """Read an AFA network that ``save`` wrote, on the CPU and in evaluation mode."""
    config, tensors = read_tensors(path, "AFA")
    try:
        network = AFA(**config)
        dtypes = {tensor.dtype for tensor in tensors.values()}
        network.to(dtypes.pop() if len(dtypes) == 1 else torch.float32)
        network.load_state_dict(tensors)
    except (TypeError, RuntimeError, KeyError, ValueError) as error:
        raise ValueError(f"{path} does not describe an AFA network: {error}") from None
    return network.eval()


def write_tensors(path: str | Path, kind: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write named tensors and a configuration as one safetensors file, atomically."""
    from faverage import __version__

    header = {"kind": kind, "format": FORMAT, "version": __version__, "config": config}
    target = Path(path)
    with replacing(target) as partial:
        flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(flat, partial, metadata={"faverage": json.dumps(header)})
    return target


def read_tensors(path: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what ``write_tensors`` wrote, or raise ValueError that says what the file is instead."""
    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder, expected a file saved by faverage")
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("faverage", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, ValueError, OSError) as error:
        raise ValueError(f"{path} is not a file saved by faverage: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("config"), dict):
        raise ValueError(f"{path} is a safetensors file, but was not saved by faverage")
    if header.get("kind") != kind:
        raise ValueError(f"{path} holds '{header.get('kind')}', expected '{kind}'")
    if not isinstance(header.get("format"), int) or header["format"] > FORMAT:
        raise ValueError(
            f"{path} has format {header.get('format')}, written by faverage {header.get('version')}; "
            f"this version reads formats up to {FORMAT}: upgrade faverage"
        )
    return header["config"], tensors


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``target``; move it there when the block ends well, remove it otherwise."""
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".partial")
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        umask = os.umask(0)
        os.umask(umask)
        partial.chmod(0o666 & ~umask)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
