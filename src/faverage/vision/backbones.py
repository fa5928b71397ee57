"""Networks from images to feature vectors: ResNet-18 with two stems, and a small conv net for tiny images.

A backbone is any module from ``(n, 3, S, S)`` to ``(n, d)``. Those here also know ``dimension`` (d), ``config()``, with
which ``get_backbone`` builds the same network again, ``pools``, for views of the largest values, and ``maps``, for all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faverage.errors import CheckpointError
from faverage.registry import Registry
from faverage.vision.pools import pool

__all__ = [
    "ResNet18",
    "TinyNet",
    "average_weights",
    "backbone_names",
    "get_backbone",
    "load_weights",
    "register_backbone",
]


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, as in ResNet-18; the names of its parts are torchvision's."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor, relu: bool = True) -> Tensor:
        """Map ``(n, inputs, h, w)`` to ``(n, outputs, h / stride, w / stride)``, with a last ReLU or without."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x)) + shortcut
        return F.relu(x) if relu else x


class Pooled(nn.Module):
    """A backbone whose features are the means of channels over all positions; a subclass has a half and two quarters.

    Attributes:
        dimension: d, the number of features.
        earlier: c, the number of channels after three quarters.
        directions: ``(d, k)``, of the covariance,
        textures: ``(c, min(c, k))``, the directions of the texture, and
        centres: ``(m, d)``, of the parts; all None until ``fit_pools`` finds them.
    """

    dimension: int
    earlier: int
    directions: Tensor | None
    textures: Tensor | None
    centres: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        for name in ("directions", "textures", "centres"):
            self.register_buffer(name, None)

    def first_half(self, x: Tensor) -> Tensor:
        """Return what half of the network makes of images ``(n, 3, S, S)``: ``(n, b, h, w)``."""
        raise NotImplementedError

    def third_quarter(self, x: Tensor) -> Tensor:
        """Return the channels ``(n, c, h, w)`` of what ``first_half`` returned."""
        raise NotImplementedError

    def last_quarter(self, x: Tensor) -> Tensor:
        """Return the channels ``(n, d, h, w)`` of what ``third_quarter`` returned."""
        raise NotImplementedError

    def maps(self, x: Tensor) -> Tensor:
        """Return the channels ``(n, d, h, w)`` of what ``first_half`` returned."""
        return self.last_quarter(self.third_quarter(x))

    def forward(self, x: Tensor) -> Tensor:
        """Return features ``(n, d)`` of normalised images ``(n, 3, S, S)``."""
        return self.second_half(self.first_half(x))

    def second_half(self, x: Tensor) -> Tensor:
        """Return the features ``(n, d)`` of what ``first_half`` returned."""
        return self.maps(x).mean((2, 3), dtype=torch.float32)

    def pools(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the largest value of each channel, ``(n, d)`` each, of images ``(n, 3, S, S)``."""
        maps = self.maps(self.first_half(x))
        return pool("mean", maps), pool("largest", maps)


class ResNet18(Pooled):
    """ResNet-18 without its classifier: ``(n, 3, S, S)`` to ``(n, 8 * width)``, 512-d as usual, never negative.

    Parameters carry torchvision's names, so its checkpoints load as they are (see ``load_weights``).

    Args:
        stem: ``large`` is the usual 7x7 convolution with stride 2 and a max-pool, for 224 px; ``small`` is a 3x3
            convolution with stride 1 and no pool, for 84 px and below.
        width: channels of the first stage.
        last_relu: whether the last block ends with a ReLU; without it features may be negative.

    >>> ResNet18("small")(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 512])
    """

    def __init__(self, stem: Literal["small", "large"] = "large", *, width: int = 64, last_relu: bool = True) -> None:
        super().__init__()
        if stem not in ("small", "large"):
            raise ValueError(f"unknown stem {stem!r}: use 'small' (84 px and below) or 'large' (224 px)")
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}")
        self.stem, self.width, self.last_relu = stem, width, last_relu
        self.earlier, self.dimension = 4 * width, 8 * width
        kernel, stride, padding = (7, 2, 3) if stem == "large" else (3, 1, 1)
        self.conv1 = nn.Conv2d(3, width, kernel, stride, padding, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(Block(width, width, 1), Block(width, width, 1))
        self.layer2 = nn.Sequential(Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(Block(2 * width, 4 * width, 2), Block(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(Block(4 * width, 8 * width, 2), Block(8 * width, 8 * width, 1))
        _start_convolutions(self)

    def first_half(self, x: Tensor) -> Tensor:
        """Return the output ``(n, 2 * width, h, w)`` of the second of the four stages, for images ``(n, 3, S, S)``."""
        x = F.relu(self.bn1(self.conv1(x)))
        if self.stem == "large":
            x = F.max_pool2d(x, 3, 2, 1)
        return cast(Tensor, self.layer2(self.layer1(x)))

    def third_quarter(self, x: Tensor) -> Tensor:
        """Return the output ``(n, 4 * width, h, w)`` of the third stage, for that of the second."""
        return cast(Tensor, self.layer3(x))

    def last_quarter(self, x: Tensor) -> Tensor:
        """Return the output ``(n, dimension, h, w)`` of the last stage, for that of the third."""
        return cast(Tensor, self.layer4[1](self.layer4[0](x), relu=self.last_relu))

    def config(self) -> dict[str, Any]:
        """Return what ``get_backbone`` needs to build this network again."""
        config = {"name": f"resnet18_{self.stem}", "width": self.width}
        return config if self.last_relu else {**config, "last_relu": False}


class TinyNet(Pooled):
    """Four blocks of 3x3 convolution, batch norm and ReLU, for images of 8 to 32 px: ``(n, 3, S, S)`` to ``(n, d)``.

    The first three blocks end with a 2x2 max-pool; the last one has ``dimension`` channels, the others half as many,
    and ends without ReLU if ``last_relu`` is False.

    >>> TinyNet(dimension=64)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 64])
    """

    def __init__(self, *, dimension: int = 128, last_relu: bool = True) -> None:
        super().__init__()
        if dimension < 2:
            raise ValueError(f"dimension must be at least 2, got {dimension}")
        self.earlier, self.dimension, self.last_relu = dimension // 2, dimension, last_relu
        sizes = [3, dimension // 2, dimension // 2, dimension // 2, dimension]
        pairs = list(pairwise(sizes))
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b in pairs)
        _start_convolutions(self)

    def first_half(self, x: Tensor) -> Tensor:
        """Return the output ``(n, d // 2, h, w)`` of the second of the four blocks, for images ``(n, 3, S, S)``."""
        for i in (0, 1):
            x = F.max_pool2d(F.relu(self.norms[i](self.convs[i](x))), 2, ceil_mode=True)
        return x

    def third_quarter(self, x: Tensor) -> Tensor:
        """Return the output ``(n, d // 2, h, w)`` of the third block, for that of the second."""
        return F.max_pool2d(F.relu(self.norms[2](self.convs[2](x))), 2, ceil_mode=True)

    def last_quarter(self, x: Tensor) -> Tensor:
        """Return the output ``(n, d, h, w)`` of the last block, for that of the third."""
        x = self.norms[3](self.convs[3](x))
        return F.relu(x) if self.last_relu else x

    def config(self) -> dict[str, Any]:
        """Return what ``get_backbone`` needs to build this network again."""
        config = {"name": "tiny", "dimension": self.dimension}
        return config if self.last_relu else {**config, "last_relu": False}


MOST_PARTS = 64
BACKBONES: Registry[Callable[..., nn.Module]] = Registry("backbone")
B = TypeVar("B", bound=Callable[..., nn.Module])


def register_backbone(name: str) -> Callable[[B], B]:
    """Decorator: make a backbone, as a class or a function that builds one, known to ``get_backbone`` and to runs.

    It maps ``(n, 3, S, S)`` to ``(n, d)``, has the attribute ``dimension`` (d) and the method ``config()``, which
    returns ``{"name": name, **options}``.

    >>> @register_backbone("mean-colour")
    ... class MeanColour(nn.Module):
    ...     dimension = 3
    ...     def forward(self, x):
    ...         return x.mean((2, 3))
    ...     def config(self):
    ...         return {"name": "mean-colour"}
    >>> get_backbone("mean-colour")(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 3])
    >>> BACKBONES.unregister("mean-colour")
    """
    return BACKBONES.register(name)


register_backbone("resnet18_large")(lambda **options: ResNet18("large", **options))
register_backbone("resnet18_small")(lambda **options: ResNet18("small", **options))
register_backbone("tiny")(TinyNet)


def backbone_names() -> list[str]:
    """Return the names that ``get_backbone`` knows.

    >>> {"tiny", "resnet18_small", "efficientnet_lite0"} <= set(backbone_names())
    True
    """
    return sorted(BACKBONES)


def get_backbone(name: str, **options: Any) -> nn.Module:
    """Build a backbone by name, with fresh weights from torch's random generator; ``a+b`` has both side by side.

    >>> get_backbone("tiny", dimension=64).config()
    {'name': 'tiny', 'dimension': 64}
    """
    if isinstance(name, str) and "+" in name and name not in BACKBONES:
        from faverage.vision.together import Together

        return Together(name.split("+"), **options)
    build, pools = BACKBONES.get(name), options.pop("pools", None)
    try:
        module = build(**options)
    except TypeError as error:
        raise ValueError(f"backbone {name!r} does not take these options: {error}") from None
    if pools is not None:  # of a file, whose numbers are filled in
        directions, parts = pools
        if not isinstance(module, Pooled) or not 1 <= directions <= module.dimension or not 1 <= parts <= MOST_PARTS:
            raise ValueError(f"backbone {name!r} does not take these options: pools={pools!r}")
        module.directions = torch.zeros(module.dimension, directions)
        module.textures = torch.zeros(module.earlier, min(module.earlier, directions))
        module.centres = torch.zeros(parts, module.dimension)
    return module


def backbone_config(module: nn.Module) -> dict[str, Any] | None:
    """Return what ``get_backbone`` needs to build ``module`` again; None for a module of another kind."""
    config: Any = getattr(module, "config", None)
    if not callable(config):
        return None
    if isinstance(module, Pooled) and module.directions is not None and module.centres is not None:
        return {**config(), "pools": [module.directions.shape[1], len(module.centres)]}
    return dict(config())


def load_weights(module: nn.Module, path: str | Path) -> nn.Module:
    """Load a checkpoint into ``module``, in place, and return it.

    Args:
        module: the backbone.
        path: a torchvision ResNet-18 checkpoint (``.pth``, ``.pt``; read with ``weights_only=True``), a safetensors
            file with the same names, or a file that ``BaseModel.save`` or a checkpoint of ``train_base`` wrote. The
            classifier (``fc.*``, ``head.*``) is ignored.

    Raises:
        CheckpointError: the file is no checkpoint.
        ValueError: if a tensor is missing, is left over, or has another shape; the message names them.

    >>> import tempfile
    >>> trained, fresh = get_backbone("tiny", dimension=8), get_backbone("tiny", dimension=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save(trained.state_dict(), f"{folder}/tiny.pth")
    ...     backbone = load_weights(fresh, f"{folder}/tiny.pth")
    ...     try:
    ...         load_weights(get_backbone("tiny", dimension=16), f"{folder}/tiny.pth")
    ...     except ValueError as error:
    ...         print(str(error).partition("tiny.pth ")[2].partition(";")[0])
    does not fit this TinyNet: convs.0.weight has shape (4, 3, 3, 3), expected (8, 3, 3, 3)
    >>> torch.equal(backbone.convs[0].weight, trained.convs[0].weight)
    True
    """
    others, wanted = ("fc.", "head.", "momentum.", "directions", "textures", "centres"), module.state_dict()
    read = read_weights(Path(path)).items()
    given = {name: tensor for name, tensor in read if name in wanted or not name.startswith(others)}
    for name, tensor in wanted.items():
        if name.endswith("num_batches_tracked"):
            given.setdefault(name, tensor)
    problems = [f"no tensor {name}" for name in wanted if name not in given]
    problems += [f"unknown tensor {name}" for name in given if name not in wanted]
    for name in wanted.keys() & given.keys():
        found, expected = tuple(given[name].shape), tuple(wanted[name].shape)
        if found != expected:
            problems.append(f"{name} has shape {found}, expected {expected}")
    if problems:
        hint = ""
        side, expected_side = (d["conv1.weight"].shape[-1] if "conv1.weight" in d else 0 for d in (given, wanted))
        if side and expected_side and side != expected_side:
            stem = "resnet18_large" if side == 7 else "resnet18_small"
            hint = f". Its stem is {side}x{side}: load it into get_backbone('{stem}')"
        shown = "; ".join(sorted(problems)[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise ValueError(f"{path} does not fit this {type(module).__name__}: {shown}{hint}")
    odd = [name for name in wanted if not given[name].dtype.is_floating_point and wanted[name].dtype.is_floating_point]
    odd += [name for name in wanted if name not in odd and not bool(torch.isfinite(given[name].float()).all())]
    if odd:
        raise ValueError(f"{path}: {odd[0]} must hold finite numbers, got {given[odd[0]].dtype}")
    module.load_state_dict(given)
    return module


def average_weights(networks: Sequence[nn.Module], shares: Sequence[float] | None = None) -> nn.Module:
    """Return a network whose weights are the mean of those of networks alike, none of which is changed.

    That is of use where they were trained from the same weights (a model soup), and with those weights among them
    (WiSE-FT): one pass is then nearly as good as the fused answers of all. Statistics of batch norms are averaged, too.

    Args:
        networks: at least one, all with tensors of the same names and shapes.
        shares: of each, they sum to one; by default all count alike.

    >>> first, second = get_backbone("tiny", dimension=8), get_backbone("tiny", dimension=8)
    >>> soup = average_weights([first, second], [0.25, 0.75])
    >>> bool(torch.allclose(soup.convs[0].weight, 0.25 * first.convs[0].weight + 0.75 * second.convs[0].weight))
    True
    """
    given = [1 / len(networks)] * len(networks) if shares is None and networks else list(shares or [])
    if not networks or len(given) != len(networks) or abs(sum(given) - 1) > 1e-6:
        raise ValueError(f"expected a share for each of {len(networks)} networks, one in all, got {given}")
    states = [network.state_dict() for network in networks]
    shapes = [{name: tensor.shape for name, tensor in state.items()} for state in states]
    if any(one != shapes[0] for one in shapes):
        raise ValueError("only networks with weights of the same names and shapes have a mean")
    mean = copy.deepcopy(networks[0])
    for name, tensor in mean.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(sum(share * state[name] for share, state in zip(given, states, strict=True)))
    return mean


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read named tensors, of any shapes, from a ``.safetensors`` file or from what ``torch.save`` wrote."""
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
            content = content.get("state_dict", content)
        fits = all(isinstance(name, str) and _is_plain(tensor) for name, tensor in content.items())
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {error}", what=path) from None
    if not content or not fits:
        raise ValueError(f"{path} does not hold a state dict: expected a mapping from names to tensors")
    return {name.removeprefix("module.").removeprefix("backbone."): tensor for name, tensor in content.items()}


def _is_plain(tensor: Any) -> bool:
    """Return whether this is a tensor of numbers in memory: not sparse, quantised, or a shape alone."""
    return (
        isinstance(tensor, Tensor)
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.is_quantized or tensor.is_complex())
    )


def _start_convolutions(module: nn.Module) -> None:
    """Draw the weights of convolutions as He et al. do: normal, by the number of outputs."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
