"""A whole learner as one ONNX file: transform, views, backbone, members and fusion, from bytes to probabilities."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
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
from faverage.app.own import as_model, is_own, own_module
from faverage.app.why import asked
from faverage.errors import install_line
from faverage.fscil import CosineHead, FewShotLearner, LinearHead, PrototypeHead, Whitening
from faverage.fscil.fusers import ALONE
from faverage.fscil.heads import RidgeHead, unit
from faverage.fscil.members import Member, Members
from faverage.fusion.afa import AFAFuser
from faverage.fusion.arrays import SQUARINGS
from faverage.fusion.pools import LogPool
from faverage.storage import replacing
from faverage.vision import BaseModel, Evaluate, get_views, transforms_for
from faverage.vision.extraction import features_of


def export_learner(
    model: Model | FewShotLearner, path: str | Path, *, side: int | None = None, tolerance: float = 1e-3
) -> float:
    """Write a model as ONNX: ``images``, uint8 (n, S, S, 3), to ``probabilities``, float32 (n, N), for any n.

    The file's metadata holds ``classes`` (a JSON list, in the order of the columns) and ``side`` (S). It is run in
    onnxruntime on random and on plain images, and compared with the learner, before it appears at ``path``.

    Args:
        model: a model, or a learner of images.
        path: the file to write.
        side: S; needed for a learner whose evaluation scales its images, or whose backbone is a module.
        tolerance: largest difference in a probability; rounding alone makes 1e-4 where a fuser's weights are large.

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
        raise ImportError(f"the export needs the extra 'onnx': {install_line('onnx')} ({error})") from None
    learner = model.learner if isinstance(model, Model) else model
    base = getattr(learner.backbone, "model", None)
    if base is None and is_own(learner.backbone) and side is not None:
        base = as_model(own_module(learner.backbone), transforms_for(side)[1])
    if base is None or not learner.classes:
        raise ModelError(
            "only a learner of images with a trained backbone of its own that knows a class can be written as ONNX"
        )
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
        self.views = get_views(learner.views)
        self.widths = list(learner.known.widths.values())  # of the learner's views: several networks have their own
        names, members = list(learner.known.views), learner.members
        chosen = [member for member in members.members if member.name in asked(learner)]
        fused = learner.fuser not in ALONE and learner.fitted is not None
        self.fuse: nn.Module = _fuser(learner, members) if fused else _Mean(chosen, members.n_classes)
        self.members = nn.ModuleList(_Member(member, names, members.n_classes) for member in chosen)
        maps = learner.known.whitening
        self.whiten = nn.ModuleList(_Whiten(maps[view]) if maps else nn.Identity() for view in names)

    def forward(self, images: Tensor) -> Tensor:
        """Return probabilities ``(n, N)`` of uint8 images ``(n, S, S, 3)``."""
        x = self.see(images)
        views = torch.cat(features_of(self.backbone, self.views, x), 1).split(self.widths, 1)
        seen = [whiten(view) for whiten, view in zip(self.whiten, views, strict=True)]
        scores = torch.stack([member(seen if member.whitened else views) for member in self.members], 1)
        fused: Tensor = self.fuse(scores)
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


class _Whiten(nn.Module):
    """What prototypes see of features ``(n, d)``, where the learner whitens."""

    centre: Tensor
    matrix: Tensor

    def __init__(self, whitening: Whitening) -> None:
        super().__init__()
        self.register_buffer("centre", torch.from_numpy(whitening.centre))
        self.register_buffer("matrix", torch.from_numpy(whitening.matrix))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, d)``."""
        return (_unit_roots(x) - self.centre) @ self.matrix


class _Member(nn.Module):
    """One member: probabilities of all N classes, 0 for those that it does not know."""

    weight: Tensor
    bias: Tensor
    place: Tensor | None

    def __init__(self, member: Member, views: list[str], n_classes: int) -> None:
        super().__init__()
        head = member.head
        self.view = None if member.view is None else views.index(member.view)
        self.normed = not isinstance(head, LinearHead)
        self.whitened = member.kind != "base" or (isinstance(head, CosineHead) and head.whitened)
        weight, bias = (torch.from_numpy(np.asarray(part, dtype=np.float32)) for part in _linear(head))
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        place = None
        if not np.array_equal(member.classes, np.arange(n_classes)):  # its columns lie among all others
            place = torch.zeros(len(member.classes), n_classes)
            place[torch.arange(len(member.classes)), torch.from_numpy(member.classes)] = 1.0
        self.register_buffer("place", place)

    def forward(self, seen: Sequence[Tensor]) -> Tensor:
        """Return ``(n, N)`` of features ``(n, d_v)`` of each view."""
        if self.view is None:
            roots = [_unit_roots(x) for x in seen]
            features = torch.cat(roots, 1) / len(roots) ** 0.5
        else:
            features = _unit(seen[self.view]) if self.normed else seen[self.view]
        known: Tensor = (features @ self.weight.T + self.bias).softmax(-1)
        return known if self.place is None else known @ self.place


def _unit(x: Tensor) -> Tensor:
    length = x.square().sum(1, keepdim=True).sqrt()
    return x / torch.where(length > 0, length, 1.0)


def _unit_roots(x: Tensor) -> Tensor:
    return _unit(x.sign() * x.abs().sqrt())


def _linear(head: LinearHead | CosineHead | PrototypeHead | RidgeHead) -> tuple[Any, Any]:
    """Return W and b of logits that are linear in the features, or in the normalised ones.

    softmin of τ ‖z − p‖² is softmax of 2τ z·p − τ ‖p‖², as ‖z‖² is the same for all p.
    """
    if isinstance(head, LinearHead):
        return head.weight, head.bias
    if isinstance(head, CosineHead):
        return head.scale * unit(head.weight), np.zeros(len(head.weight))
    if isinstance(head, RidgeHead):
        return head.temperature * head.weight, head.temperature * head.bias
    tau, p = head.temperature, head.prototypes.astype(np.float64)
    return 2 * tau * p, -tau * (p**2).sum(1)


def _fuser(learner: FewShotLearner, members: Members) -> nn.Module:
    """Return the fuser as a module from scores ``(n, K, N)``, 0 where a member does not know a class."""
    fuser: Any = learner.fitted
    if isinstance(fuser, AFAFuser):
        return _Mixed(fuser, members)
    if isinstance(getattr(fuser, "network", None), AFA):
        return _Padded(fuser, members)
    if isinstance(fuser, LogPool):
        return _Pool(fuser, members)
    raise ModelError(
        f"a learner with the fuser '{learner.fuser}' cannot be written as ONNX: use 'afa', 'afa-paper', 'log-pool', "
        "'prototypes' or 'no-fine-tuning'"
    )


def _gaps(members: Sequence[Member], n_classes: int) -> Tensor:
    """Return 1 where a member does not know a class, ``(K, N)``."""
    gaps = torch.ones(len(members), n_classes)
    for k, member in enumerate(members):
        gaps[k, torch.from_numpy(member.classes)] = 0.0
    return gaps


class _Mean(nn.Module):
    """The mean over the members that know a class, as probabilities."""

    counts: Tensor

    def __init__(self, members: Sequence[Member], n_classes: int) -> None:
        super().__init__()
        self.register_buffer("counts", (1 - _gaps(members, n_classes)).sum(0).clamp(min=1))

    def forward(self, scores: Tensor) -> Tensor:
        """Return ``(n, N)``."""
        mean = scores.sum(1) / self.counts
        return mean / mean.sum(1, keepdim=True)


class _Mixed(nn.Module):
    """The networks that ``afa`` chose, mixed by their shares; a class that a member does not know has 1/N.

    Where the fuser couples the scores, so does this, except for full matrices.
    """

    gaps: Tensor

    def __init__(self, fuser: AFAFuser, members: Members) -> None:
        super().__init__()
        n = members.n_classes
        self.register_buffer("gaps", _gaps(members.members, n))
        self.coupled = [fuser.coupled and not name.startswith("full") for name in fuser.weights]
        fits: list[Any] = [fuser.fits[name] for name in fuser.weights]
        self.shares = list(fuser.weights.values())
        self.fits = nn.ModuleList(
            _LogLinear(fit) if hasattr(fit, "softenings") else fit.network(n).float() for fit in fits
        )

    def forward(self, scores: Tensor) -> Tensor:
        """Return ``(n, N)``."""
        padded = scores + self.gaps / scores.shape[2]
        other = _couple(scores, self.gaps) if any(self.coupled) else padded
        inputs = [other if coupled else padded for coupled in self.coupled]
        parts = [share * fit(x) for share, fit, x in zip(self.shares, self.fits, inputs, strict=True)]
        fused = torch.stack(parts).sum(0)
        return fused / fused.sum(1, keepdim=True)


def _couple(scores: Tensor, gaps: Tensor) -> Tensor:
    """Return what ``faverage.fusion.arrays.couple`` does, for scores ``(n, K, N)`` with 0 at the gaps ``(K, N)``."""
    here, unknown = 1 - gaps, gaps.prod(0)
    x = scores / (1 + (scores.sum(2, keepdim=True) - 1).relu())
    part = x / (here.sum(0) + unknown)
    steps = here @ part.transpose(1, 2)
    for _ in range(SQUARINGS):
        steps = steps @ steps
        steps = steps / steps.amax((1, 2), keepdim=True)
    p = ((steps @ here.mean(1, keepdim=True)) * part).sum(1)
    p = p / p.sum(1, keepdim=True) + unknown / len(unknown)
    mass = (here * p[:, None]).sum(2, keepdim=True)
    return mass * x + gaps * p[:, None]


class _LogLinear(nn.Module):
    """softmax(B log(softened members) + b)."""

    weights: Tensor
    bias: Tensor

    def __init__(self, fit: Any) -> None:
        super().__init__()
        self.softenings: tuple[float, ...] = fit.softenings
        self.full = fit.structure == "full"
        self.register_buffer("weights", torch.from_numpy(fit.weights).float())
        self.register_buffer("bias", torch.from_numpy(fit.bias).float())

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, N)``."""
        logs = torch.cat([((x + e) / (1 + e)).log() for e in self.softenings], 1)
        if self.full:
            return (logs.flatten(1) @ self.weights.T + self.bias).softmax(-1)
        return ((logs * self.weights.T).sum(1) + self.bias).softmax(-1)


class _Padded(nn.Module):
    """A trained AFA network, on members that are padded as its fuser pads them."""

    share: Tensor
    gaps: Tensor

    def __init__(self, fuser: Any, members: Members) -> None:
        super().__init__()
        self.network: AFA = copy.deepcopy(fuser.network).float().cpu()
        self.padding, self.threshold = fuser.padding, fuser.threshold
        gaps = _gaps(members.members, members.n_classes)
        self.register_buffer("gaps", gaps)
        self.register_buffer("share", 1 - gaps.mean(1, keepdim=True))  # (K, 1), of the classes that it knows

    def forward(self, scores: Tensor) -> Tensor:
        """Return ``(n, N)``."""
        share = torch.ones_like(self.share)
        if self.padding == "uniform":
            share = self.share
        elif self.padding == "inlierness":
            sure = (scores.amax(2, keepdim=True) >= self.threshold).float()
            share = torch.where(self.share < 1, 0.5 * (self.share + sure), 1.0)
        each = (1 - share) / self.gaps.sum(1, keepdim=True).clamp(min=1)
        fused: Tensor = self.network(scores * share + each * self.gaps)
        return fused


class _Pool(nn.Module):
    """The log-opinion pool: softmax(Σ_k w_k log(p_k + ε)), padded uniformly."""

    share: Tensor
    fill: Tensor
    weights: Tensor

    def __init__(self, fuser: LogPool, members: Members) -> None:
        super().__init__()
        gaps = _gaps(members.members, members.n_classes)
        self.eps = fuser.eps
        self.register_buffer("share", 1 - gaps.mean(1, keepdim=True))
        self.register_buffer("fill", gaps / members.n_classes)
        self.register_buffer("weights", torch.from_numpy(fuser.weights).float()[:, None])

    def forward(self, scores: Tensor) -> Tensor:
        """Return ``(n, N)``."""
        logs = (scores * self.share + self.fill + self.eps).log()
        return (logs * self.weights).sum(1).softmax(-1)
