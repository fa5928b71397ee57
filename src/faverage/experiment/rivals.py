"""Rivals in a run: each trains its own network on the images, session by session, and goes on after a kill."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from faverage.experiment.sessions import Outcome
from faverage.storage import replacing

if TYPE_CHECKING:
    from faverage.experiment.config import RunConfig
    from faverage.experiment.pictures import Pictures
    from faverage.rivals import Rival

__all__ = ["rival_base", "rival_folder", "rival_recipe", "run_rival"]


def rival_recipe(name: str, config: RunConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the recipe of a rival in a run, and what it wants of the run itself: ``backbone`` and ``crop``."""
    from faverage.rivals import get_rival
    from faverage.rivals.base import merged

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
    """Return the name of the folder for a rival's states: its own for each recipe and for each set of images."""
    said = json.dumps([rival_recipe(name, config), pictures.stamp], sort_keys=True)
    return f"{name}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"


def run_rival(
    name: str, pictures: Pictures, config: RunConfig, folder: Path, draw: int, *, progress: bool = False
) -> dict[str, Any]:
    """Take a rival through all sessions; return its metrics as plain data.

    The state after the base session, which all draws share, and after every later session is kept in ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state, log = folder / f"draw-{draw}.safetensors", folder / f"draw-{draw}.json"
    rows = pictures.rows.redrawn(pictures.labels, config.seed, draw)
    outcome = Outcome(pictures.sessions)
    if log.exists():
        outcome.restore(json.loads(log.read_text(encoding="utf-8")))
    if 0 < len(outcome) < len(pictures.sessions) and state.exists():
        rival = _load(name, state, config, progress)
    else:
        outcome = outcome if len(outcome) == len(pictures.sessions) else Outcome(pictures.sessions)
        rival = rival_base(name, pictures, config, folder, progress)
    for k in range(len(outcome), len(pictures.sessions)):
        start = time.perf_counter()
        if len(rival.sessions) == k:  # otherwise it was stopped after learning and before its test
            rival.learn_session(np.asarray(pictures.images[rows.train[k - 1]]), pictures.labels[rows.train[k - 1]])
        test = rows.test[np.isin(pictures.labels[rows.test], np.concatenate(pictures.sessions[: k + 1]))]
        said = rival.predict(pictures.images[test])
        if k > 0:
            rival.save(state)
        outcome.add(pictures.labels[test], said, time.perf_counter() - start)
        with replacing(log) as partial:
            partial.write_text(json.dumps(outcome.to_dict()) + "\n", encoding="utf-8")
    trained = json.loads((folder / "base.json").read_text(encoding="utf-8"))
    state.unlink(missing_ok=True)
    return {**outcome.to_dict(), "history": None, "explanation": None, "base": trained}


def rival_base(name: str, pictures: Pictures, config: RunConfig, folder: Path, progress: bool) -> Rival:
    """Return the rival after its base session, from disk where an earlier run finished it."""
    from faverage.rivals import get_rival
    from faverage.vision import Augment, transforms_for

    file, about = folder / "base.safetensors", folder / "base.json"
    if file.exists() and about.exists():
        return _load(name, file, config, progress)
    recipe, own = rival_recipe(name, config)
    augment = pictures.augment
    if "crop" in own:
        usual = transforms_for(pictures.images.shape[1], crop=own["crop"])[0].config()
        augment = Augment(**{**usual, "flip": augment.flip, "jitter": augment.jitter, **augment.statistics()})
    rival = get_rival(name)(
        own.get("backbone", config.backbone),
        recipe=recipe,
        total=sum(len(classes) for classes in pictures.sessions),
        augment=augment,
        transform=pictures.transform,
        device=config.device,
        seed=config.seed,
        checkpoints=folder,
        progress=progress,
    )
    start = time.perf_counter()
    rival.fit_base(np.asarray(pictures.images[pictures.base]), pictures.labels[pictures.base])
    trainings = {what: training.config["training"] for what, training in rival.trainings.items()}
    speeds = {what: training.images_per_second for what, training in rival.trainings.items()}
    rival.save(file)
    said = {"seconds": time.perf_counter() - start, "recipe": recipe, "trainings": trainings, **own}
    with replacing(about) as partial:
        partial.write_text(json.dumps({**said, "images_per_second": speeds}) + "\n", encoding="utf-8")
    return rival


def _load(name: str, file: Path, config: RunConfig, progress: bool) -> Rival:
    from faverage.rivals import get_rival

    return get_rival(name).load(file, device=config.device, progress=progress)
