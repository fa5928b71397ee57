"""Targets that were learned: networks, fusers, learners, models."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz import examples as sound
from fuzz.common import change_file, check_probabilities, copy_folder, upset
from fuzz.formats import change_tensors
from fuzz.mutate import change_json_file
from fuzz.target import Broken, Target

__all__ = ["FuserFile", "Learner", "ModelFolder", "Network"]


class Tensors(Target):
    """One safetensors file that a function of the library reads."""

    refusals = (ValueError, OSError)

    def prepare(self, examples: Path) -> None:
        """Write the sound files."""
        for name, data in self.sound().items():
            (examples / f"{name}.safetensors").write_bytes(data)

    def sound(self) -> dict[str, bytes]:
        """Sound files by name."""
        raise NotImplementedError

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one of them."""
        data = rng.choice(sorted(examples.iterdir())).read_bytes()
        (work / "file.safetensors").write_bytes(change_tensors(rng, data))


class Network(Tensors):
    """An AFA network, ``faverage.load``."""

    name, share = "afa", 800

    def sound(self) -> dict[str, bytes]:
        """Networks of every structure and output."""
        from faverage import AFA, save

        structures: list[dict[str, Any]]
        structures = [{"structure": name} for name in ("full", "per_class", "scalar")]
        structures += [{"structure": name, "groups": [0, 0, 1]} for name in ("block", "tied")]
        structures += [{"output": name} for name in ("normalise", "power")] + [{"constraint": "softmax"}]
        return {str(k): save(AFA(3, 3, **one), sound.home() / "n").read_bytes() for k, one in enumerate(structures)}

    def read(self, rng: Random, work: Path) -> None:
        """Answers are probabilities, unless the network is one of regression."""
        import torch

        from faverage import load

        network = load(work / "file.safetensors")
        if network.n_models * network.n_outputs > 10_000:
            raise Broken(f"accepted with {network.n_models} models and {network.n_outputs} classes")
        given = torch.from_numpy(sound.scores(5, network.n_models, max(1, network.n_outputs)))
        with torch.no_grad():
            answers = network(given.to(next(network.parameters()).dtype)).float().numpy()
        if network.output != "identity":
            check_probabilities(answers)
        elif not np.isfinite(answers).all():
            raise Broken("answers are not finite")


class FuserFile(Tensors):
    """A fuser, ``load_fuser``."""

    name, share = "fuser", 900

    def sound(self) -> dict[str, bytes]:
        """Every fuser."""
        return sound.fuser_files()

    def read(self, rng: Random, work: Path) -> None:
        """Answers are probabilities."""
        from faverage.fusion import load_fuser

        fuser = load_fuser(work / "file.safetensors")
        models, classes = fuser.n_models, fuser.n_classes
        if not all(isinstance(n, int) and n >= 0 for n in (models, classes)):
            raise Broken("accepted with a number of models or classes that is none")
        if models * classes > 10_000 or fuser._fitted is None:
            return  # a mean of so many is sound, but takes long
        check_probabilities(fuser.predict_proba(sound.scores(5, models, classes)))


class Folder(Target):
    """A folder of which one file is changed, or one thing about the folder itself."""

    refusals: tuple[type[Exception], ...] = (ValueError, OSError)

    def make_in(self, rng: Random, folder: Path) -> None:
        """Change one or two things in a folder."""
        for _ in range(rng.choice((1, 1, 1, 2))):
            files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
            if not files:
                return
            file = rng.choice(files)
            if rng.random() < 0.15:
                upset(rng, folder, file)
            else:
                change_file(rng, file, change_json_file if file.suffix == ".json" else change_tensors)


class Learner(Folder):
    """A learner's folder, ``FewShotLearner.load``."""

    name, share, refusals = "learner", 500, (ValueError, OSError, FloatingPointError)

    def prepare(self, examples: Path) -> None:
        """Write learners of features, and one with a backbone."""
        for name, folder in sound.learner_folders().items():
            copy_folder(folder, examples / name)
        copy_folder(sound.model_folder() / "base", examples / "images")

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one."""
        copy_folder(rng.choice(sorted(examples.iterdir())), work / "learner")
        self.make_in(rng, work / "learner")

    def read(self, rng: Random, work: Path) -> None:
        """Answers are probabilities."""
        from faverage.fscil import FewShotLearner

        learner = FewShotLearner.load(work / "learner", device="cpu")
        if learner.backbone is None:
            draw = np.random.default_rng(0)
            given: Any = {view: draw.normal(size=(4, d)).astype(np.float32) for view, d in learner.known.widths.items()}
        else:
            given = np.stack([np.asarray(sound.picture(k)) for k in range(2)])
        answers = learner.predict_proba(given)
        check_probabilities(answers)
        if answers.shape[1] != len(learner.classes):
            raise Broken("accepted with another number of classes than answers")


class ModelFolder(Folder):
    """A model's folder: load, ask, change, load again."""

    name, share, writes, seconds = "model", 700, True, 30.0

    def __init__(self) -> None:
        from faverage.app.model import ModelError

        self.refusals = (ModelError,)

    def prepare(self, examples: Path) -> None:
        """Write a model."""
        copy_folder(sound.model_folder(), examples / "model")

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change its folder; half of the time, model.json."""
        copy_folder(examples / "model", work / "model")
        if rng.random() < 0.4:
            change_file(rng, work / "model" / "model.json", change_json_file)
        else:
            self.make_in(rng, work / "model")

    def read(self, rng: Random, work: Path) -> None:
        """Answers are probabilities; a change leaves a model that can be read; nothing beside the folder changes."""
        from faverage.app.model import Model, ModelError
        from faverage.app.server.schemas import classes_answer

        folder, picture = work / "model", sound.picture(3, 20)
        model = Model.load(folder, device="cpu")
        self._ask(model, picture)
        classes_answer(model).model_dump_json()
        json.dumps(model.history(), ensure_ascii=False).encode()
        try:
            model.explain().to_markdown().encode()
        except ModelError:
            pass
        outside = _contents(work / "outside")
        what = rng.choice(("nothing", "undo", "teach", "add", "forget", "rename"))
        if what == "nothing":
            return
        if what == "undo":
            model.undo()
        elif what == "teach":
            model.teach("new", [picture, sound.picture(4, 20)])
        elif what == "add":
            model.teach(model.classes()[0].name, [sound.picture(5, 20)])
        elif what == "rename":
            model.rename(model.classes()[-1].name, "renamed")
        else:
            model.forget("white")
        try:
            self._ask(Model.load(folder, device="cpu"), picture)
        except ModelError as error:
            raise Broken(f"after {what} the model cannot be read: {error}") from error
        if _contents(work / "outside") != outside:
            raise Broken(f"{what} changed files outside of the model's folder")

    def _ask(self, model: Any, picture: Any) -> None:
        answer = model.predict([picture])[0]
        check_probabilities([p for _, p in answer.top])


def _contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else path.rglob("*")
    return {str(file): file.read_bytes() for file in files if file.is_file() and file.name != ".lock"}
