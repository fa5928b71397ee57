"""Rivals in a run: each trains its own network on the images, session by session, and goes on after a kill."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from faverage.experiment.code import method_code
from faverage.experiment.pictures import seen_by
from faverage.experiment.resume import read_left, with_weights, write_left
from faverage.fscil.metrics import Outcome

if TYPE_CHECKING:
    from faverage.experiment.config import RunConfig
    from faverage.experiment.pictures import Pictures
    from faverage.rivals import Rival

__all__ = ["rival_base", "rival_folder", "rival_recipe", "run_rival"]


def rival_recipe(name: str, config: RunConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the recipe of a rival in a run, and what it wants of the run itself: ``backbone`` and ``crop``."""
    from faverage.rivals import get_rival
    from faverage.rivals.rival import merged

    recipes = get_rival(name).recipes
    own: dict[str, Any] = {}
    recipe = recipes["shared"]
    if config.recipe != "paper":
        base = {key: getattr(config, key) for key in ("epochs", "batch_size", "lr", "schedule", "weight_decay")}
        layers = [{"base": base}, recipes.get(f"shared/{config.dataset}", {})]
    else:
        epochs = {} if config.rival_epochs is None else {"base": {"epochs": config.rival_epochs}}
        layers = [recipes["paper"], recipes.get(f"paper/{config.dataset}", {}), epochs]
    for layer in layers:
        own |= {key: value for key, value in layer.items() if key in ("backbone", "crop")}
        recipe = merged(recipe, {key: value for key, value in layer.items() if key not in own}, name)
    return recipe, own


def rival_folder(name: str, config: RunConfig, pictures: Pictures) -> str:
    """Return the name of the folder for a rival's states: its own for each recipe, start, set of images and code."""
    start = [] if config.weights is None else [_hash(Path(config.weights).expanduser())]
    said = json.dumps([rival_recipe(name, config), pictures.stamp, method_code(name), *start], sort_keys=True)
    return f"{name}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"


def run_rival(
    name: str, pictures: Pictures, config: RunConfig, folder: Path, draw: int, *, order: int = 0, progress: bool = False
) -> dict[str, Any]:
    """Take a rival through all sessions; return its metrics as plain data.

    The state after the base session, which all draws and orders of later classes share, and after every later session
    is kept in ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    which = f"order-{order}-draw-{draw}" if order else f"draw-{draw}"
    log = folder / f"{which}.json"
    drawn = pictures.reordered(config.seed, order).redrawn(config.seed, draw)
    outcome, rival = _left(name, log, pictures, config, progress)
    rival = rival or rival_base(name, pictures, config, folder, progress)
    for k in range(len(outcome), len(pictures.sessions)):
        start = time.perf_counter()
        if k > 0:
            shots = drawn.shots[k - 1]
            rival.learn_session(np.asarray(pictures.images[shots]), drawn.labels[shots])
        learned = time.perf_counter()
        test = drawn.test[np.isin(drawn.labels[drawn.test], np.concatenate(pictures.sessions[: k + 1]))]
        said = rival.predict(pictures.images[test])
        state = rival.save(folder / f"{which}-{k}.safetensors") if k > 0 else folder / "base.safetensors"
        outcome.add(drawn.labels[test], said, time.perf_counter() - start, learned - start)
        write_left(log, {"outcome": outcome.to_dict(), "state": state.name, "sha256": _hash(state)})
        (folder / f"{which}-{k - 1}.safetensors").unlink(missing_ok=True)
    trained = read_left(folder / "base.json", "it was just read") or {}
    for state in folder.glob(f"{which}-*.safetensors"):
        state.unlink(missing_ok=True)
    return {**outcome.to_dict(), "history": None, "explanation": None, "base": trained.get("about")}


def _left(name: str, log: Path, pictures: Pictures, config: RunConfig, progress: bool) -> tuple[Outcome, Rival | None]:
    """Return how far an earlier run came with a draw, and the rival as it was then; None: it starts anew."""
    left = read_left(log, "its sessions are run again")
    if left is None or read_left(log.with_name("base.json"), "the base session is trained again") is None:
        return Outcome(pictures.sessions), None
    outcome = Outcome(pictures.sessions)
    outcome.restore(left["outcome"])
    if len(outcome) == len(pictures.sessions):  # its last state may be gone
        return outcome, None
    rival = _load(name, log.with_name(left["state"]), left["sha256"], config, progress)
    return (Outcome(pictures.sessions), None) if rival is None else (outcome, rival)


def rival_base(name: str, pictures: Pictures, config: RunConfig, folder: Path, progress: bool) -> Rival:
    """Return the rival after its base session, from disk where an earlier run finished it."""
    from faverage.rivals import get_rival
    from faverage.vision import Augment, CheckpointError, transforms_for

    file, about = folder / "base.safetensors", folder / "base.json"
    left = read_left(about, "the base session is trained again")
    if left is not None:
        rival = _load(name, file, left["sha256"], config, progress)
        if rival is not None:
            return rival
    recipe, own = rival_recipe(name, config)
    augment = pictures.augment
    if "crop" in own:  # its paper's crops, of the usual areas, and the run's colours
        usual = transforms_for(pictures.images.shape[1], crop=own["crop"])[0]
        augment = Augment(**{**augment.config(), "size": usual.size, "area": usual.area})
    backbone = own.get("backbone", config.backbone)
    if config.weights is not None:
        with_weights(backbone, config.weights)  # fails here, in words, and not amid the sessions
    make = partial(
        get_rival(name),
        backbone,
        recipe=recipe,
        total=sum(len(classes) for classes in pictures.sessions),
        weights=config.weights and Path(config.weights).expanduser(),
        augment=augment,
        transform=seen_by(replace(config, test_size=None), pictures).transform,
        device=config.device,
        seed=config.seed,
        checkpoints=folder,
        progress=progress,
    )
    start = time.perf_counter()
    images, labels = np.asarray(pictures.images[pictures.base]), pictures.labels[pictures.base]
    try:
        rival = make().fit_base(images, labels)
    except CheckpointError as error:
        warnings.warn(f"{name} is trained anew: {' '.join(str(error).split())}", stacklevel=2)
        for checkpoint in folder.glob(f"{name}-*.safetensors"):
            checkpoint.unlink()
        rival = make().fit_base(images, labels)
    rival.checkpoints = None  # they are of the base session; a draw has states of its own
    trainings = {what: training.config["training"] for what, training in rival.trainings.items()}
    speeds = {what: training.images_per_second for what, training in rival.trainings.items()}
    rival.save(file)
    epochs = sum(sum(training.history["seconds"]) for training in rival.trainings.values())  # before a kill, too
    said = {"seconds": max(time.perf_counter() - start, epochs), "recipe": recipe, "trainings": trainings, **own}
    write_left(about, {"about": {**said, "images_per_second": speeds}, "sha256": _hash(file)})
    return rival


def _load(name: str, file: Path, checksum: str, config: RunConfig, progress: bool) -> Rival | None:
    """Return a rival as it was saved; None where the file is gone, or is not what was saved, which is said."""
    from faverage.rivals import get_rival

    try:
        if _hash(file) == checksum:
            return get_rival(name).load(file, device=config.device, progress=progress)
        reason = "it was changed"
    except (OSError, ValueError) as error:
        reason = str(error)
    warnings.warn(f"{file} cannot be used ({reason}); what it held is made again", stacklevel=3)
    return None


def _hash(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
