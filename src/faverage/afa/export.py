"""Networks on disk: one safetensors file, or ONNX with a parity check, so that they run where Python does not."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from faverage.afa.network import AFA
from faverage.errors import install_line
from faverage.storage import read_tensors, replacing, write_tensors

__all__ = ["export_onnx", "load", "save"]


def export_onnx(network: AFA, path: str | Path, *, tolerance: float = 1e-5, seed: int = 0) -> float:
    """Write ``network`` as an ONNX model ``scores (n, K, N) -> fused (n, N)`` with any n.

    The file is run in onnxruntime on random scores, of several batch sizes, and compared with the network before it
    appears at ``path``. For scores near 0, where all classes are alike, it must give probabilities, too.

    Returns:
        The largest absolute difference seen, at most ``tolerance``.

    Raises:
        ImportError: the extra ``onnx`` is not installed.
        ValueError: the exported model does not agree with the network; nothing is written.

    The file runs wherever onnxruntime does, without this package:

    >>> network = AFA(n_models=2, n_outputs=3)
    >>> export_onnx(network, "fuser.onnx") < 1e-5  # doctest: +SKIP
    True
    >>> import onnxruntime  # doctest: +SKIP
    >>> session = onnxruntime.InferenceSession("fuser.onnx")  # doctest: +SKIP
    >>> session.run(None, {"scores": torch.rand(5, 2, 3).numpy()})[0].shape  # doctest: +SKIP
    (5, 3)
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"export_onnx needs the extra 'onnx': {install_line('onnx')} ({error})") from None
    if not isinstance(network, AFA):
        raise ValueError(f"network must be an AFA, got {type(network).__name__}")
    device = next(network.parameters()).device
    dtype = next(network.parameters()).dtype
    was_training = network.training
    network.eval().cpu()
    generator = torch.Generator().manual_seed(seed)
    shape = (network.n_models, network.n_outputs)
    try:
        with replacing(Path(path)) as partial:
            torch.onnx.export(
                network,
                (torch.rand(2, *shape, generator=generator, dtype=dtype),),
                partial,
                input_names=["scores"],
                output_names=["fused"],
                dynamic_shapes=({0: torch.export.Dim("n")},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
            session = onnxruntime.InferenceSession(partial.read_bytes(), providers=["CPUExecutionProvider"])
            worst = 0.0
            for n in (1, 2, 17):
                scores = torch.rand(n, *shape, generator=generator, dtype=dtype)
                scores[0, 0, 0] = 0.0
                (fused,) = session.run(None, {"scores": scores.numpy()})
                with torch.no_grad():
                    difference = float((network(scores) - torch.from_numpy(fused)).abs().max())
                if not difference <= tolerance:  # NaN, too
                    raise ValueError(
                        f"the ONNX model differs from the network by {difference:g}, more than {tolerance:g}"
                    )
                worst = max(worst, difference)
            tiny = torch.tensor([0.0, 1e-30, 1e-13, 1e-12, 1e-9], dtype=dtype).view(-1, 1, 1)
            (fused,) = session.run(None, {"scores": tiny.expand(-1, *shape).contiguous().numpy()})
            total = torch.from_numpy(fused).sum(-1)  # of rounding alone, which need not be the same here and there
            if not bool(total.isfinite().all()) or (
                network.output != "identity" and bool((total - 1).abs().max() > 1e-3)
            ):
                raise ValueError("the ONNX model gives no probabilities for scores near 0")
    finally:
        network.to(device).train(was_training)
    return worst


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
    """Read an AFA network that ``save`` wrote, on the CPU and in evaluation mode.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     network = load(save(AFA(2, 3), f"{folder}/fuser.safetensors"))
    >>> network(torch.rand(5, 2, 3)).shape
    torch.Size([5, 3])
    """
    config, tensors = read_tensors(path, "AFA")
    try:
        network = AFA(**config)
        dtypes = {tensor.dtype for tensor in tensors.values()}
        network.to(dtypes.pop() if len(dtypes) == 1 else torch.float32)
        network.load_state_dict(tensors)
        _check_weights(network, tensors)
    except (TypeError, RuntimeError, KeyError, ValueError) as error:
        raise ValueError(f"{path} does not describe an AFA network: {error}") from None
    return network.eval()


def _check_weights(network: AFA, tensors: dict[str, Tensor]) -> None:
    """Raise ValueError where weights are not finite, or far from the set that the network keeps them in."""
    if not all(tensor.is_floating_point() and tensor.isfinite().all() for tensor in tensors.values()):
        raise ValueError("its weights are not finite numbers")
    network.project_()
    for name, tensor in network.state_dict().items():
        if not torch.allclose(tensor, tensors[name], atol=1e-3, rtol=1e-3):
            raise ValueError(f"its weights '{name}' are not those of an average")
    network.load_state_dict(tensors)
