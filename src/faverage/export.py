"""ONNX export with a built-in parity check, so that a fused model runs where Python does not."""

from __future__ import annotations

from pathlib import Path

import torch

from faverage.network import AFA
from faverage.storage import replacing

__all__ = ["export_onnx"]


def export_onnx(network: AFA, path: str | Path, *, tolerance: float = 1e-5, seed: int = 0) -> float:
    """Write ``network`` as an ONNX model ``scores (n, K, N) -> fused (n, N)`` with any n.

    The file is run in onnxruntime on random scores, of several batch sizes, and compared with the network before it
    appears at ``path``.

    Returns:
        The largest absolute difference seen, at most ``tolerance``.

    Raises:
        ImportError: the extra ``onnx`` is not installed.
        ValueError: the exported model does not agree with the network; nothing is written.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"export_onnx needs the extra 'onnx': pip install 'faverage[onnx]' ({error})") from None
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
                    worst = max(worst, float((network(scores) - torch.from_numpy(fused)).abs().max()))
            if not worst <= tolerance:
                raise ValueError(f"the ONNX model differs from the network by {worst:g}, more than {tolerance:g}")
    finally:
        network.to(device).train(was_training)
    return worst
