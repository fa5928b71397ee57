"""New models: from a folder of photos, from nothing, from a finished run; and the embedded one, which knows digits."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from faverage.app.folder import check_absent
from faverage.app.model import Model
from faverage.app.names import ModelError, clean_name, pictures_of
from faverage.app.own import SIDE, ready_backbone
from faverage.app.photos import open_picture
from faverage.app.pictures import MOST_BYTES, Pictures, ids_of
from faverage.app.seen import look_at
from faverage.data.benchmark import shown
from faverage.data.sources import Item, class_folders, class_items
from faverage.data.store import in_order, open_store
from faverage.fscil import FewShotLearner
from faverage.fscil.heads import base_heads, fit_head, unit
from faverage.fscil.images import ImageBackbone
from faverage.fscil.whitening import whitenings
from faverage.report.page import duration
from faverage.storage import read_tensors
from faverage.vision import (
    Augment,
    BaseModel,
    Evaluate,
    Team,
    backbone_names,
    extract_features,
    get_backbone,
    get_views,
    hold_out,
    load_weights,
    pretrained_names,
    train_base,
)
from faverage.vision import transforms_for as usual_transforms
from faverage.vision.extraction import with_pools
from faverage.vision.together import by_view

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]
How = Literal["ready", "fine-tune", "from-scratch"]

# side of the stored squares
SIDES = {"resnet18_small": 84, "resnet18_large": 256} | {f"efficientnet_lite{i}": 256 for i in range(3)}
TINY = 32
WHITEN = 0.9  # shrinkage: what a class differs in within itself counts for less
SHIPPED, DIGITS, DIGITS_SIDE = "digits.safetensors", "digits", 16  # the embedded model
GREY = (0.5, 0.5, 0.5)
LAYOUT = "expected one sub-folder a class, such as IMAGES/cat/1.jpg and IMAGES/dog/2.png"


@dataclass(frozen=True)
class Trained:
    """A new model, and how well it does on the pictures that were held out."""

    model: Model  # in its folder
    accuracy: float  # share of right answers
    held_out: int  # number of these pictures


def train_model(
    folder: Path,
    out: Path,
    *,
    from_scratch: bool = False,
    fine_tune: bool = False,
    backbone: str | None = None,
    views: Sequence[str] = ("plain",),
    epochs: int | None = None,
    weights: Path | None = None,
    device: str = "auto",
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> Trained:
    """Learn the classes of a folder with one sub-folder a class, and write the model to ``out``.

    By default a network with ready weights looks at the photos, and only heads are fitted: seconds. Training a network
    takes minutes to days and says beforehand how long; one that was stopped goes on where it was.

    Args:
        folder: of the photos, of any size; of ``train`` and ``test`` in it, the first is used.
        out: the folder of the model; it must not exist yet.
        from_scratch: train a network from nothing: ``resnet18_small``, and ``tiny`` where no photo is larger than 32
            pixels, or ``backbone``. ``epochs``, ``weights`` or a backbone without ready weights ask for this, too.
        fine_tune: train a network that has ready weights a little further.
        backbone: a name; of networks with ready weights several, with commas between; or ``package.module:build``, see
            ``faverage.app.own``. By default ``efficientnet_lite0``.
        views: ways to look at each photo, see ``faverage.vision.View``.
        epochs: passes over the photos in training; by default 50, 20 for ``tiny``, and 5 to fine-tune.
        weights: a checkpoint for the network to start from.
        device: where to train and to look.
        seed: of everything that is drawn.
        progress: hears what is being done.
    """
    check_absent(out)
    how = how_to_train(from_scratch, fine_tune, backbone, epochs, weights)
    names, items = _classes(folder)
    if how == "ready":
        model = ready_backbone(backbone)
        return _look_and_learn(model, names, items, out, tuple(views), device, seed, progress)
    plan = _plan(how, backbone, weights, items, progress)
    images, kept, skipped = open_store("photos", items, plan.side)
    _warn_of_broken([f"{shown(image)} ({reason})" for image, reason in skipped], len(items))
    numbers = np.array([items[i].label for i in kept])
    _check_counts(numbers, names)
    aside = np.isin(np.arange(len(numbers)), hold_out(numbers, small="drawn", seed=seed))
    batch = int(min(64 if how == "fine-tune" else 128, max(8, (~aside).sum() // 16)))
    checkpoint = out.parent / f".{out.name}.training.safetensors"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    train = partial(
        train_base,
        images,
        backbone=plan.network,
        batch_size=batch,
        lr=_rate(how, plan.name, batch),
        augment=plan.augment,
        transform=plan.transform,
        device=device,
        seed=seed,
    )
    rows, passes = np.flatnonzero(~aside), epochs or plan.epochs
    what = f"training on {pictures_of(len(rows))}, {passes} time{'' if passes == 1 else 's'}"
    if checkpoint.exists():
        progress(f"{what}: where it was stopped", 0, 0)
    else:
        progress(f"{what}: measuring how long it takes", 0, 0)
        progress(f"{what}: about {duration(_seconds(train, numbers, rows, batch) * passes)}", 0, 0)
    train = partial(train, numbers, indices=rows, epochs=passes, checkpoint=checkpoint, progress=True)
    from faverage.experiment.resume import trained

    model = trained(train, checkpoint, Team())
    progress("learning the classes", 0, 0)
    # in a few epochs, a head that began with nothing lags behind what a ready network sees
    made = _finish(model, out, images, numbers, names, aside, device, seed, views, how == "fine-tune")
    checkpoint.unlink(missing_ok=True)
    return made


def _rate(how: How, name: str, batch: int) -> float:
    """Return the learning rate at the start."""
    if how == "fine-tune":
        return 0.01 * math.sqrt(batch / 32)
    return 0.1 * batch / 128 if name != "tiny" and batch > 32 else 0.025


def how_to_train(
    from_scratch: bool, fine_tune: bool, backbone: str | None, epochs: int | None, weights: Path | None
) -> How:
    """Return what the options of ``train_model`` ask for; ModelError where they contradict each other."""
    if from_scratch and fine_tune:
        raise ModelError("--from-scratch trains a network from nothing, --fine-tune a ready one: give one of them")
    names = [] if backbone is None or ":" in backbone else [name.strip() for name in backbone.split(",")]
    for name in names:
        if name not in backbone_names():
            known = ", ".join(backbone_names())
            raise ModelError(f"unknown backbone '{name}': choose from {known}, or name package.module:build")
    ready = all(name in pretrained_names() for name in names)
    if (from_scratch or fine_tune) and (len(names) > 1 or (backbone or "").count(":")):
        raise ModelError(f"the backbone '{backbone}' is used as it is: only one network with a name can be trained")
    if fine_tune and not ready:
        raise ModelError(
            f"there are no ready weights for '{backbone}': fine-tune one of {', '.join(pretrained_names())}"
        )
    if fine_tune and weights is not None:
        raise ModelError("--fine-tune starts from the ready weights: leave out --weights")
    if from_scratch or fine_tune:
        return "from-scratch" if from_scratch else "fine-tune"
    if not ready and len(names) > 1:
        raise ModelError(
            f"of several backbones, each must have ready weights: choose from {', '.join(pretrained_names())}"
        )
    if backbone is not None and ready and (epochs is not None or weights is not None):
        option = "--weights" if epochs is None else "--epochs"
        raise ModelError(f"{option} is for training, and '{backbone}' is ready: add --fine-tune or --from-scratch")
    return "ready" if ready and epochs is None and weights is None else "from-scratch"


def empty_model(
    folder: Path, *, backbone: str | None = None, views: Sequence[str] = ("plain",), device: str = "auto"
) -> Model:
    """Return a new model that knows nothing yet and sees with a ready backbone, see ``ready_backbone``."""
    check_absent(folder)
    model = ready_backbone(backbone)
    learner = FewShotLearner(model, views=_views(views, ready=True), device=device)
    return Model.create(folder, learner, side=_side(model), device=device)


def _look_and_learn(
    model: BaseModel,
    names: list[str],
    items: list[Item],
    out: Path,
    views: tuple[str, ...],
    device: str,
    seed: int,
    progress: Progress,
) -> Trained:
    """Fit heads on what a frozen network makes of the photos."""
    learner = FewShotLearner(model, views=_views(views, ready=True), whiten=WHITEN, device=device, seed=seed)
    eyes, side = learner.backbone, _side(model)
    assert isinstance(eyes, ImageBackbone)
    files = [item.file for item in items]
    seen = look_at(files, eyes.ready(batch_size=32), side, progress=progress)
    _warn_of_broken([f"{shown(items[i].name)} ({reason})" for i, reason in seen.broken], len(items))
    numbers = np.array([items[i].label for i in seen.kept], dtype=np.int64)
    _check_counts(numbers, names)
    progress("learning the classes", 0, 0)
    learner.backbone = None  # what is given are features
    learner.fit_base(seen.views, np.array(names)[numbers])
    known = learner.known
    said = learner.predict(known.views)  # of what was held out from the heads
    learner.backbone = eyes
    own = {name: seen.kept[numbers == c] for c, name in enumerate(names)}
    rows = dict(zip(ids_of(seen.views), seen.kept, strict=True))
    made = _create(out, learner, own, rows, lambda i: open_picture(files[i].read_bytes()), side=side, device=device)
    return Trained(made, float((said == np.array(known.classes)[known.labels]).mean()), len(known.labels))


def _create(
    out: Path,
    learner: FewShotLearner,
    own: dict[str, Array],
    rows: dict[str, int],
    picture: Callable[[int], Image.Image],
    *,
    side: int,
    device: str,
) -> Model:
    """Write a model of base classes, with thumbnails, and small pictures of the held-out examples.

    These are one of each class in turn, and take half of the room at most: the other half is for what will be taught.

    Pictures have numbers, for which ``picture`` returns them: those of each class are in ``own``, those of examples, by
    the examples' names, in ``rows``.
    """
    counts = {name: len(numbers) for name, numbers in own.items()}
    first = {name: [picture(i) for i in numbers[:5]] for name, numbers in own.items()}
    model = Model.create(out, learner, side=side, counts=counts, thumbnails=first, device=device)
    known = model.learner.known
    names, store = ids_of(known.views), Pictures(model.folder, model.side, MOST_BYTES // 2)
    turns = [(known.labels[:row] == c).sum() for row, c in enumerate(known.labels)]
    order, room = np.argsort(turns, kind="stable"), store.most
    files: dict[str, bytes] = {}

    def packed(place: int) -> tuple[str, bytes]:
        name = names[order[place]]
        try:
            return name, store.packed(picture(rows[name]))
        except (OSError, ModelError):  # a file that went away since it was looked at
            return name, b""

    for name, data in in_order(packed, range(len(order)), min(8, os.cpu_count() or 1)):
        room -= len(data)
        if room < 0:
            break
        files |= {name: data} if data else {}
    store.keep(files)
    return model


def _views(views: Sequence[str], *, ready: bool = False) -> tuple[str, ...]:
    """Return the full names of views of a network, ready or trained here; ModelError where it has not these."""
    try:
        found = get_views(views)
    except ValueError as error:
        raise ModelError(f"--views: {error}") from None
    fitted = [view.pool for view in found if view.fitted]
    if ready and fitted:
        said = f"'{fitted[0]}' is fitted to the photos that a network is trained on"
        raise ModelError(f"--views: {said}: add --fine-tune or --from-scratch, or leave that view out")
    return tuple(view.name for view in found)


def _side(model: BaseModel) -> int:
    """Return the side of the squares that a network is to be given."""
    return model.transform.resize or (SIDE if model.transform.size == SIDE * 7 // 8 else model.transform.size)


@dataclass(frozen=True)
class _Plan:
    """How a network is trained: from what, on squares of which side, with which transforms and epochs."""

    name: str
    network: Any
    side: int
    augment: Augment
    transform: Evaluate
    epochs: int


def _plan(how: How, backbone: str | None, weights: Path | None, items: list[Item], progress: Progress) -> _Plan:
    if how == "fine-tune":
        model = ready_backbone(backbone)
        sees = model.transform
        augment = Augment(sees.size, mean=sees.statistics()["mean"], std=sees.statistics()["std"])
        return _Plan(str(backbone), model.backbone, _side(model), augment, sees, 5)
    progress("looking at the size of the photos", 0, 0)
    largest = _largest(items)
    name = backbone or ("tiny" if largest <= TINY else "resnet18_small")
    side = SIDES.get(name) or max(8, min(largest, TINY))
    network: Any = name if weights is None else load_weights(get_backbone(name), weights)
    augment, transform = usual_transforms(side, crop=64 if side == 84 else None)
    return _Plan(name, network, side, augment, transform, 20 if name == "tiny" else 50)


def _seconds(train: Any, numbers: Array, rows: Array, batch: int) -> float:
    """Return how long one pass over ``rows`` takes, by the faster of two passes over a few of them."""
    few = np.random.default_rng(0).permutation(rows)[: 2 * batch if torch.cuda.is_available() else 2 * min(batch, 16)]
    labels = np.zeros_like(numbers)
    labels[few] = np.unique(numbers[few], return_inverse=True)[1]  # every class up to the largest must occur
    trial = train(labels, indices=few, epochs=2, batch_size=min(batch, max(2, len(few) // 2)))
    return float(min(trial.history["seconds"])) * len(rows) / len(few)


def _warn_of_broken(broken: list[str], total: int) -> None:
    if broken:
        warnings.warn(f"left out {len(broken):,} of {total:,} files: {'; '.join(broken[:3])}", stacklevel=3)


def _check_counts(numbers: Array, names: list[str]) -> None:
    """Raise ModelError where a class, of the numbers ``(n,)``, has too few photos to hold one out."""
    for c, count in enumerate(np.bincount(numbers, minlength=len(names))):
        if count < 2:
            what = f"{count} photo{'' if count == 1 else 's'} that can be read"
            raise ModelError(
                f"the class '{names[c]}' has {what}: at least 2 are needed; add some, or remove the folder"
            )


def train_from_run(run: Path, out: Path, *, device: str = "auto", progress: Progress = lambda *_: None) -> Trained:
    """Make a model of the base session of a finished ``faverage run``; its images are needed once more."""
    from faverage.experiment.pictures import load_pictures
    from faverage.experiment.run import finished_run

    check_absent(out)
    config, file = finished_run(run)
    model = BaseModel.load(file)
    progress("loading images", 0, 0)
    pictures = load_pictures(config)
    names = [_clean(pictures.class_names[c]) for c in pictures.sessions[0]]
    rows = pictures.base
    aside = np.isin(rows, pictures.kept)
    progress("learning the classes", 0, 0)
    return _finish(model, out, pictures.images[rows], pictures.labels[rows], names, aside, device, config.seed)


def _finish(
    model: BaseModel,
    out: Path,
    images: Array,
    numbers: Array,
    names: list[str],
    aside: Array,
    device: str,
    seed: int,
    views: Sequence[str] = ("plain",),
    refit: bool = False,
) -> Trained:
    """Make a model of base classes whose backbone and head are trained.

    Args:
        model: trained on what is not held out.
        out: the folder of the model.
        images: uint8 ``(n, S, S, 3)``.
        numbers: class of each ``(n,)``, in 0 … C-1.
        names: of the C classes.
        aside: mask ``(n,)`` of the images that were held out; they become the memory.
        device: where to look at the images.
        seed: of the learner.
        views: ways to look at each image.
        refit: fit heads to the features, instead of those of the model, where it has one for the view.
    """
    rest = np.flatnonzero(~aside)
    views = _views(views)
    model = with_pools(model, views, images, rest, device=device)
    options: dict[str, Any] = {"transform": model.transform, "views": views, "device": device, "progress": True}
    features = by_view(extract_features(model.backbone, images, rest, **options), views, model.backbone)
    order = np.argsort(np.array(names))  # a learner has its base classes in this order
    maps = whitenings(features, numbers[rest], WHITEN)
    means = {}
    for view, x in features.items():
        z = maps[view](x) if maps else x
        means[view] = np.stack([unit(z[numbers[rest] == c]).mean(0) for c in order])
    own = {} if refit else {view: head.of_rows(order) for view, head in base_heads(model, views).items()}
    places = np.argsort(order)[numbers[rest]]
    heads = {v: own.get(v) or fit_head(x, places, len(names)) for v, x in features.items()}
    labels = np.array(names)[numbers[aside]]
    learner = FewShotLearner(model, views=views, whiten=WHITEN, device=device, seed=seed)
    learner.fit_base(images[aside], labels, head=heads, prototypes=means, whitening=maps)
    said = learner.predict(images[aside])
    of_class = {name: np.flatnonzero(numbers == c) for c, name in enumerate(names)}
    rows = dict(zip(ids_of(learner.known.views), np.flatnonzero(aside).tolist(), strict=True))
    side = images.shape[1]
    made = _create(
        out, learner, of_class, rows, lambda i: Image.fromarray(np.asarray(images[i])), side=side, device=device
    )
    return Trained(made, float((said == labels).mean()), int(aside.sum()))


def _classes(folder: Path) -> tuple[list[str], list[Item]]:
    """Return the clean names of the classes and their image files."""
    if not folder.is_dir():
        raise ModelError(f"the folder {folder} does not exist: {LAYOUT}")
    parts = {sub.name: sub for sub in class_folders(folder)}
    if "train" in parts and set(parts) <= {"train", "test", "val"}:
        folder = parts["train"]
    found, items = class_items(folder)
    if len(found) < 2:
        words = "no sub-folder" if not found else "one sub-folder"
        raise ModelError(f"{folder} has {words}, at least 2 classes are needed: {LAYOUT}")
    if not items:
        raise ModelError(f"{folder} has {len(found)} sub-folders, but no images in them: {LAYOUT}")
    names = [_clean(name) for name in found]
    for name in names:
        if names.count(name) > 1:
            raise ModelError(f"{folder} has {names.count(name)} sub-folders for the class '{name}': make them one")
    return names, items


def _clean(name: str) -> str:
    try:
        return clean_name(name)
    except ModelError as error:
        raise ModelError(f"the class '{shown(name)}': {error}") from None


def _largest(items: Sequence[Item]) -> int:
    """Return the longest side among the photos, looking at a few hundred of them at most."""
    largest = 0
    for item in items[:: max(1, len(items) // 300)]:
        if not item.file.is_file():  # a pipe would make us wait
            continue
        try:
            with Image.open(item.file) as opened:
                largest = max(largest, *opened.size)
        except Exception:  # what cannot be read is left out later, with words
            continue
    return largest or SIDES["resnet18_small"]


def digits_model(folder: str | Path) -> Model:
    """Return the model of digits, as people draw them, in ``folder``, and make it first where there is none.

    It is made of what ``tools/digits_model.py`` has trained.
    """
    if (Path(folder) / "model.json").is_file():
        return Model.load(folder, device="cpu")
    about, tensors = read_tensors(Path(__file__).with_name(SHIPPED), DIGITS)
    model = network_of(about, tensors)
    names = [str(digit) for digit in range(10)]
    learner = FewShotLearner(model, device="cpu").fit_base(
        _coloured(tensors["kept"]),
        np.array(names)[tensors["labels"].numpy()],
        head=(tensors["head.weight"].numpy().copy(), tensors["head.bias"].numpy().copy()),
        prototypes=tensors["prototypes"].numpy().copy(),
    )
    first = _coloured(tensors["shown"]).reshape(10, -1, DIGITS_SIDE, DIGITS_SIDE, 3)
    try:
        return Model.create(
            folder,
            learner,
            side=DIGITS_SIDE,
            counts=dict(zip(names, about["counts"], strict=True)),
            thumbnails=dict(zip(names, first, strict=True)),
            device="cpu",
        )
    except ModelError:
        if (Path(folder) / "model.json").is_file():  # another process made it meanwhile
            return Model.load(folder, device="cpu")
        raise


def network_of(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> BaseModel:
    """Return the network of tensors of 16 bits."""
    network = get_backbone("tiny", dimension=about["dimension"])
    weights = {name.removeprefix("backbone."): x for name, x in tensors.items() if name.startswith("backbone.")}
    network.load_state_dict({name: x.float() if x.is_floating_point() else x for name, x in weights.items()})
    head = tensors["head.weight"].clone(), tensors["head.bias"].clone()
    return BaseModel(network.eval(), "linear", *head, None, Evaluate(DIGITS_SIDE, mean=GREY, std=GREY))


def _coloured(grey: torch.Tensor) -> Array:
    """Return drawings ``(n, 16, 16)`` in three channels, uint8 ``(n, 16, 16, 3)``."""
    return np.repeat(grey.numpy()[..., None], 3, axis=-1)
