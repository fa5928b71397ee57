"""A whole learner as one ONNX file: transform, backbone, heads, padding and fusion, from bytes to probabilities."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.afa.network import AFA
from faverage.app.model import Model
from faverage.app.names import ModelError
from faverage.fscil import CosineHead, FewShotLearner, LinearHead, PrototypeHead
from faverage.storage import replacing
from faverage.vision import BaseModel, Evaluate

__all__ = ["export_learner"]

_RULES = ("prototypes", "no-fine-tuning")


def export_learner(
    model: Model | FewShotLearner, path: str | Path, *, side: int | None = None, tolerance: float = 1e-4
) -> float:
    """Write a model as ONNX: ``images``, uint8 (n, S, S, 3), to ``probabilities``, float32 (n, N), for any n.

    The file's metadata holds ``classes`` (a JSON list, in the order of the columns) and ``side`` (S). It is run in
    onnxruntime on random and on plain images, and compared with the learner, before it appears at ``path``.

    Args:
        model: a model, or a learner of images.
        path: the file to write.
        side: S; needed for a learner whose evaluation scales its images.
        tolerance: largest difference in a probability.

    Returns:
        The largest difference seen.

    Raises:
        ImportError: the extra ``onnx`` is not installed.
        ModelError: the learner cannot be written, or the file does not agree with it; nothing is written.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"the export needs the extra 'onnx': pip install 'faverage[onnx]' ({error})") from None
    learner = model.learner if isinstance(model, Model) else model
    base = getattr(learner.backbone, "model", None)
    if base is None or not learner.classes:
        raise ModelError("only a learner of images with a trained backbone of its own can be written as ONNX")
    side = model.side if isinstance(model, Model) else side or base.transform.resize or base.transform.size
    target = Path(path)
    if not target.parent.is_dir():
        raise ModelError(f"cannot write {target}: the folder {target.parent} does not exist")
    graph = _Graph(learner, base, side).eval().requires_grad_(False)
    with replacing(target) as partial, _quiet():
        torch.onnx.export(
            graph,
            (torch.zeros(2, side, side, 3, dtype=torch.uint8),),
            partial,
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        written = onnx.load(partial)
        about = {"classes": json.dumps(learner.classes, ensure_ascii=False), "side": str(side)}
        onnx.helper.set_model_props(written, about)
        onnx.save(written, partial)
        session = onnxruntime.InferenceSession(partial.read_bytes(), providers=["CPUExecutionProvider"])
        worst = 0.0
        for images in _trials(side):
            (found,) = session.run(None, {"images": images})
            difference = float(np.abs(found - learner.predict_proba(images)).max())
            if not difference <= tolerance:  # NaN, too
                raise ModelError(f"the ONNX file differs from the learner by {difference:g}, more than {tolerance:g}")
            worst = max(worst, difference)
    return worst


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what the exporter says about packages and versions that do not matter here."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _trials(side: int) -> list[Any]:
    """Return batches of 1, 2 and 17 images: noise, smooth noise, black and white."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (18, side, side, 3), dtype=np.uint8)
    coarse = rng.integers(0, 256, (18, 4, 4, 3), dtype=np.uint8)
    smooth = coarse.repeat(-(-side // 4), axis=1).repeat(-(-side // 4), axis=2)[:, :side, :side]
    plain = np.stack([np.zeros_like(noise[0]), np.full_like(noise[0], 255)])
    return [noise[:1], plain, np.concatenate([noise[1:9], smooth[1:10]]), np.ascontiguousarray(smooth)]


class _Graph(nn.Module):
    """The learner as one module of tensors."""

    def __init__(self, learner: FewShotLearner, base: BaseModel, side: int) -> None:
        super().__init__()
        self.see = _See(base.transform, side)
        self.backbone = copy.deepcopy(base.backbone)
        n = len(learner.classes)
        self.heads = nn.ModuleList(_head(head, n) for head in learner.heads)
        fuser: Any = learner.fitted
        self.network: AFA | None = None
        self.alone: int | None = None
        if len(learner.heads) == 1 or learner.fuser in _RULES:
            self.alone = 0 if len(learner.heads) == 1 or learner.fuser == "no-fine-tuning" else len(learner.heads) - 1
        elif isinstance(getattr(fuser, "network", None), AFA):
            self.network = copy.deepcopy(fuser.network).float().cpu()
            for head in self.heads:
                head.pad(fuser.padding, fuser.threshold)  # type: ignore[operator]
        else:
            raise ModelError(
                f"a learner with the fuser '{learner.fuser}' cannot be written as ONNX: use 'afa', 'afa-paper', "
                "'prototypes' or 'no-fine-tuning'"
            )

    def forward(self, images: Tensor) -> Tensor:
        """Return probabilities ``(n, N)`` of uint8 images ``(n, S, S, 3)``."""
        features = self.backbone(self.see(images))
        if self.network is None:
            alone: Tensor = self.heads[self.alone or 0](features)
            return alone
        scores = torch.stack([head(features) for head in self.heads], 1)
        fused: Tensor = self.network(scores)
        return fused


class _See(nn.Module):
    """The evaluation transform; its antialiased scaling is written as two products with one matrix."""

    scale: Tensor
    shift: Tensor
    rows: Tensor | None

    def __init__(self, transform: Evaluate, side: int) -> None:
        super().__init__()
        self.register_buffer("scale", 1 / (255 * transform.std))
        self.register_buffer("shift", -transform.mean / transform.std)
        rows = None
        if transform.resize is not None and transform.resize != side:
            square = (transform.resize, side)
            eye = torch.eye(side).view(1, 1, side, side)
            rows = F.interpolate(eye, size=square, mode="bilinear", antialias=True)[0, 0]
        whole = side if rows is None else rows.shape[0]
        if whole < transform.size:
            raise ModelError(f"cannot cut {transform.size} px out of images of {whole} px: give the right side")
        first = round((whole - transform.size) / 2)
        if whole != transform.size:
            rows = (torch.eye(side) if rows is None else rows)[first : first + transform.size]
        self.register_buffer("rows", rows)

    def forward(self, images: Tensor) -> Tensor:
        """Return ``(n, 3, size, size)``, normalised."""
        x = images.permute(0, 3, 1, 2).float()
        if self.rows is not None:
            x = self.rows @ x @ self.rows.T
        return x * self.scale + self.shift


class _Head(nn.Module):
    """One head: probabilities of all N classes, those that it does not know filled by the padding."""

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, first: int, n_classes: int, *, normed: bool) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.first, self.n_classes, self.normed = first, n_classes, normed
        self.shares, self.threshold = (1.0, 1.0), 0.5

    def pad(self, padding: str, threshold: float) -> None:
        """Set what the known classes keep, where the head is unsure and where it is sure."""
        share = len(self.bias) / self.n_classes
        kept = {"inlierness": (share / 2, (share + 1) / 2), "uniform": (share, share), "zero": (1.0, 1.0)}[padding]
        self.shares = (1.0, 1.0) if share == 1 else kept
        self.threshold = threshold

    def forward(self, features: Tensor) -> Tensor:
        """Return ``(n, N)``."""
        if self.normed:
            length = features.square().sum(1, keepdim=True).sqrt()
            features = features / torch.where(length > 0, length, 1.0)
        known = (features @ self.weight.T + self.bias).softmax(-1)
        unknown = self.n_classes - len(self.bias)
        if not unknown:
            return known
        sure = known.amax(1, keepdim=True) >= self.threshold
        kept = torch.where(sure, self.shares[1], self.shares[0])
        each = (1 - kept) / unknown
        ones = torch.ones_like(self.bias)
        after = unknown - self.first
        parts = [each * ones.new_ones(self.first), known * kept, each * ones.new_ones(after)]
        return torch.cat([part for part, width in zip(parts, (self.first, 1, after), strict=True) if width], 1)


def _head(head: LinearHead | CosineHead | PrototypeHead, n_classes: int) -> _Head:
    """Return a head as tensors: softmin of τ ‖z − p‖² is softmax of 2τ z·p − τ ‖p‖², as ‖z‖² is the same for all p."""
    if isinstance(head, LinearHead):
        return _Head(torch.from_numpy(head.weight), torch.from_numpy(head.bias), 0, n_classes, normed=False)
    if isinstance(head, CosineHead):
        weight = head.scale * torch.nn.functional.normalize(torch.from_numpy(head.weight))
        return _Head(weight, torch.zeros(len(weight)), 0, n_classes, normed=True)
    p = torch.from_numpy(np.asarray(head.prototypes, dtype=np.float32))
    tau = head.temperature
    return _Head(2 * tau * p, -tau * p.square().sum(1), head.first, n_classes, normed=True)
