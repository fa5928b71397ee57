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
    appears at ``path``. For scores near 0, where all classes are alike, it must give probabilities, too.

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
                    difference = float((network(scores) - torch.from_numpy(fused)).abs().max())
                if not difference <= tolerance:  # NaN, too
                    raise ValueError(
                        f"the ONNX model differs from the network by {difference:g}, more than {tolerance:g}"
                    )
                worst = max(worst, difference)
            (fused,) = session.run(None, {"scores": _tiny_scores(shape, dtype).numpy()})
            total = torch.from_numpy(fused).sum(-1)  # of rounding alone, which need not be the same here and there
            if not bool(total.isfinite().all()) or (
                network.output != "identity" and bool((total - 1).abs().max() > 1e-3)
            ):
                raise ValueError("the ONNX model gives no probabilities for scores near 0")
    finally:
        network.to(device).train(was_training)
    return worst


def _tiny_scores(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Return rows ``(n, K, N)`` with almost nothing in them."""
    sizes = torch.tensor([0.0, 1e-30, 1e-13, 1e-12, 1e-9], dtype=dtype)
    return sizes.view(-1, 1, 1).expand(-1, *shape).contiguous()
