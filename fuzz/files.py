"""Targets that are files and folders: each is a sound example, a way to change it, and the function that reads it."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz import examples as sound
from fuzz.engine import Broken, Target
from fuzz.mutate import (
    ODD,
    change_bytes,
    change_json,
    change_json_file,
    change_npz,
    change_png,
    change_tensors,
    change_text,
    change_zip,
)

__all__ = ["check_probabilities", "file_targets"]

Change = Callable[[Random, bytes], bytes]


def check_probabilities(values: Any, what: str = "answers") -> None:
    """Raise Broken unless rows of numbers are finite, not negative, and sum to one."""
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise Broken(f"{what} are not finite")
    if (array < -1e-6).any() or (np.abs(array.sum(-1) - 1) > 5e-3).any():
        raise Broken(f"{what} do not sum to one")


def change_file(rng: Random, path: Path, change: Change) -> None:
    """Change a file in place."""
    path.write_bytes(change(rng, path.read_bytes()))


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


# -------------------------------------------------------------------------------------------------- predictions to fuse


def change_parquet(rng: Random, data: bytes) -> bytes:
    """Change columns of a table: their names, types and values; or the bytes of the file."""
    import io

    import pandas

    if rng.random() < 0.4:
        return change_bytes(rng, data)
    frame = pandas.read_parquet(io.BytesIO(data))
    column = rng.choice(list(frame.columns))
    odd = rng.choice(ODD).decode("utf-8", "replace")
    what = rng.randrange(7)
    if what == 0:
        frame = frame.rename(columns={column: odd})
    elif what == 1:
        values = (None, float("nan"), float("inf"), -1.0, 0.0, 1e300, odd, True, [0.1, 0.2], {"a": 1}, b"\xff", 10**18)
        frame[column] = [rng.choice((values[k % len(values)], values[0])) for k in [rng.randrange(99)] * len(frame)]
    elif what == 2:
        frame[column] = frame[column].astype(rng.choice(("category", "string", "object")))
    elif what == 3 and column != "id":
        frame[column] = frame[column].astype(rng.choice(("float16", "float64", "Float64", "int8", "bool", "complex64")))
    elif what == 4:
        frame[column] = pandas.to_datetime(range(len(frame)))
    elif what == 5:
        frame = frame.set_index(column)
    else:
        frame = frame.iloc[: rng.randrange(3)]
    buffer = io.BytesIO()
    try:
        frame.to_parquet(buffer)
    except Exception:  # what cannot be written cannot be read
        return change_bytes(rng, data)
    return buffer.getvalue()


class Predictions(Target):
    """A file of predictions, alone."""

    def __init__(self, kind: str, share: int, change: Change) -> None:
        from faverage.fuse import UserError

        self.name, self.share, self.change, self.refusals = kind, share, change, (UserError,)

    def prepare(self, examples: Path) -> None:
        """Write three files."""
        sound.predictions(examples, (self.name,))

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one of them."""
        file = examples / f"{rng.choice('abc')}.{self.name}"
        (work / file.name).write_bytes(self.change(rng, file.read_bytes()))

    def read(self, rng: Random, work: Path) -> None:
        """Rows are probabilities, or no answers at all."""
        from faverage.fuse.base import Listener
        from faverage.fuse.read import read_predictions

        missing = rng.random() < 0.3
        strict = Listener(rng.random() < 0.2)
        table = read_predictions(next(work.iterdir()), id_column=None, allow_missing=missing, listener=strict)
        given = table.scores[~np.isnan(table.scores).all(1)] if missing else table.scores
        check_probabilities(given, "predictions")
        "".join([*table.ids, *table.classes, *strict.warnings]).encode()


class LabelFile(Target):
    """A file of labels."""

    name, share = "labels", 700

    def __init__(self) -> None:
        from faverage.fuse import UserError

        self.refusals = (UserError,)

    def prepare(self, examples: Path) -> None:
        """Write labels as .csv and .npz."""
        sound.predictions(examples, ("npz",))

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one of them."""
        kind, change = rng.choice((("csv", change_text), ("csv", change_text), ("npz", change_npz)))
        (work / f"labels.{kind}").write_bytes(change(rng, (examples / f"labels.{kind}").read_bytes()))

    def read(self, rng: Random, work: Path) -> None:
        """As many labels as ids, all of them text."""
        from faverage.fuse.read import read_labels

        found = read_labels(next(work.iterdir()), id_column=None, label_column=None)
        if len(found.ids) != len(found.labels) or not all(isinstance(text, str) for text in found.labels):
            raise Broken("labels do not fit their ids")
        "".join([*found.ids, *found.labels]).encode()


class Fuse(Target):
    """All of ``fuse``: files in, files out."""

    name, share, writes = "fuse", 150, True

    def __init__(self) -> None:
        from faverage.fuse import UserError

        self.refusals = (UserError,)

    def prepare(self, examples: Path) -> None:
        """Write files of every kind."""
        sound.predictions(examples)

    def start(self, examples: Path) -> None:
        """Compare two quick fusers instead of all."""
        from faverage.fuse import compare

        compare.fuser_names = lambda: ["arithmetic", "log-pool"]  # type: ignore[attr-defined]

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one or two of the files."""
        kind = rng.choice(("csv", "csv", "npz"))
        names = ["labels.csv", *(f"{name}.{kind}" for name in "abc")]
        for name in names:
            shutil.copy(examples / name, work / name)
        for name in rng.sample(names, rng.choice((1, 1, 2))):
            change_file(rng, work / name, change_npz if name.endswith("npz") else change_text)

    def read(self, rng: Random, work: Path) -> None:
        """What is written can be read, and sums to one."""
        from faverage.fuse import fuse_files

        files = sorted(file for file in work.iterdir() if file.stem in "abc")
        options: dict[str, Any] = {
            "fuser": rng.choice(("arithmetic", "log-pool", "weighted-average", "afa")),
            "folds": 2,
            "allow_missing": rng.random() < 0.3,
            "strict": rng.random() < 0.1,
        }
        result = fuse_files(files, work / "labels.csv", work / "out.csv", **options)
        _check_output(work / "out.csv", len(result.classes))


def _check_output(file: Path, classes: int) -> None:
    with file.open(newline="", encoding="utf-8") as opened:
        rows = list(csv.reader(opened))[1:]
    check_probabilities([[float(cell) for cell in row[-classes:]] for row in rows if row[-1]], "fused predictions")


class Apply(Target):
    """A fuser's file for ``fuse --apply``."""

    name, share, writes = "apply", 700, True

    def __init__(self) -> None:
        from faverage.fuse import UserError

        self.refusals = (UserError,)

    def prepare(self, examples: Path) -> None:
        """Fit four fusers to files."""
        from faverage.fuse.bundle import Bundle, save_bundle
        from faverage.fusion import load_fuser

        sound.predictions(examples, ("csv",))
        (examples / "labels.csv").unlink()
        for name, data in sound.fuser_files().items():
            file = examples / "one.safetensors"
            file.write_bytes(data)
            bundle = Bundle(load_fuser(file), sound.CLASSES, list("abc"), [sound.CLASSES] * 3)
            save_bundle(bundle, examples / f"{name}.fuser")
            file.unlink()

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change the fuser's file, or one of the predictions."""
        for name in "abc":
            shutil.copy(examples / f"{name}.csv", work)
        chosen = rng.choice(sorted(examples.glob("*.fuser")))
        shutil.copy(chosen, work / "fuser.safetensors")
        if rng.random() < 0.85:
            change_file(rng, work / "fuser.safetensors", change_tensors)
        else:
            change_file(rng, work / f"{rng.choice('abc')}.csv", change_text)

    def read(self, rng: Random, work: Path) -> None:
        """What is written sums to one."""
        from faverage.fuse import apply_files

        files = [work / f"{name}.csv" for name in "abc"]
        apply_files(work / "fuser.safetensors", files, work / "out.csv", allow_missing=rng.random() < 0.2)
        _check_output(work / "out.csv", 3)


# ------------------------------------------------------------------------------------------- networks, fusers, learners


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
                _upset(rng, folder, file)
            else:
                change_file(rng, file, change_json_file if file.suffix == ".json" else change_tensors)


def _upset(rng: Random, folder: Path, file: Path) -> None:
    """Put something else in the place of a file or of its folder."""
    place = file if rng.random() < 0.7 or file.parent == folder else file.parent
    outside = folder.parent / "outside"
    what = rng.randrange(9)
    if what == 8:
        os.mkfifo(folder / ".lock") if not (folder / ".lock").exists() else None
        return
    if what == 0 and place == file:
        file.write_bytes(b"")
        return
    if what == 1:
        shutil.move(place, outside)  # a link to what is elsewhere
        place.symlink_to(outside)
        return
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    if what == 2:
        place.symlink_to(place)
    elif what == 3:
        place.symlink_to("/dev/zero")
    elif what == 4:
        os.mkfifo(place)
    elif what == 5:
        place.mkdir()
    elif what == 6:
        place.symlink_to(folder.parent / "nowhere")
    elif what == 7 and place != file:
        place.write_text("a file")


class Learner(Folder):
    """A learner's folder, ``FewShotLearner.load``."""

    name, share = "learner", 500

    def prepare(self, examples: Path) -> None:
        """Write learners of features, and one with a backbone."""
        for name, folder in sound.learner_folders().items():
            _copy(folder, examples / name)
        _copy(sound.model_folder() / "base", examples / "images")

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one."""
        _copy(rng.choice(sorted(examples.iterdir())), work / "learner")
        self.make_in(rng, work / "learner")

    def read(self, rng: Random, work: Path) -> None:
        """Answers are probabilities."""
        from faverage.fscil import FewShotLearner

        learner = FewShotLearner.load(work / "learner", device="cpu")
        if learner.backbone is None:
            given: Any = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
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
        _copy(sound.model_folder(), examples / "model")

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change its folder; half of the time, model.json."""
        _copy(examples / "model", work / "model")
        if rng.random() < 0.4:
            change_file(rng, work / "model" / "model.json", change_json_file)
        else:
            self.make_in(rng, work / "model")

    def read(self, rng: Random, work: Path) -> None:
        """Answers are probabilities; a change leaves a model that can be read; nothing beside the folder changes."""
        from faverage.app.answers import classes_answer
        from faverage.app.model import Model, ModelError

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
        what = rng.choice(("nothing", "undo", "teach", "forget"))
        if what == "nothing":
            return
        if what == "undo":
            model.undo()
        elif what == "teach":
            model.teach("new", [picture, sound.picture(4, 20)])
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


# ------------------------------------------------------------------------------------------------------ runs and sweeps


class Features(Target):
    """Ready features, for ``run --features``."""

    name, share = "features", 600

    def __init__(self) -> None:
        from faverage.experiment import ConfigError

        self.refusals = (ConfigError,)

    def prepare(self, examples: Path) -> None:
        """Write features of one view and of two."""
        sound.run_folder()
        shutil.copy(sound.home() / "features.npz", examples / "one.npz")
        with np.load(examples / "one.npz") as file:
            arrays = dict(file)
        for name in ("test", "novel", "base_memory", "base_prototypes", "base_head_weight", "base_head_bias"):
            arrays[name] = np.stack([arrays[name], arrays[name] + 0.1], 1)
        np.savez(examples / "two.npz", **arrays, views=np.array(["plain", "turn-1"]))

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one."""
        data = rng.choice(sorted(examples.iterdir())).read_bytes()
        (work / "features.npz").write_bytes(change_npz(rng, data))

    def read(self, rng: Random, work: Path) -> None:
        """Everything is finite, and of shapes that fit."""
        from faverage.experiment import RunConfig
        from faverage.experiment.features import features_of_file

        file = work / "features.npz"
        config = RunConfig.build("folder", None, {"features": str(file), "jobs": 1, "methods": "prototypes"})
        found = features_of_file(file, config.views)
        for array in (found.memory, found.prototypes, found.test):
            if not np.isfinite(np.asarray(array)).all():
                raise Broken("features are not finite")
        if len(found.memory) != len(found.memory_labels) or len(found.test) != len(found.test_labels):
            raise Broken("features do not fit their labels")


_RUN = b"""\
# a run
dataset: digits
methods: [prototypes, afa]
epochs: 3
batch_size: 32
lr: 1e-2
seeds: [0, 1, 2]
draws: 2
views: [plain, turn-1]
temperature: 8.5
flip: false
crop: null
backbone: tiny
schedule: cosine
networks:
  - {}
  - {start: 1, flip: true}
"""
_SWEEP = b"""\
dataset: digits
methods: prototypes, vote
epochs: 2
seeds: "0, 1"
draws: 2
over:
  lr: [0.1, 0.01]
  flip: [true, false]
  views: [[plain], [plain, turn-1]]
"""
_YAML = (
    *(
        b"&a [*a]",
        b"*x",
        b"!!python/object/apply:os.system ['true']",
        b"!!binary x",
        b"2020-01-01",
        b"0o17",
        b"1:30:00",
    ),
    *(
        b"<<: *x",
        b"? a",
        b"|",
        b">-\n  text",
        b"~",
        b".nan",
        b".inf",
        b"-.inf",
        b"{a: {b: [c]}}",
        b"!!set {a, b}",
        b"[[]]",
    ),
    *(
        b"1e400",
        b"0x_",
        b"1_0",
        b"'",
        b"%YAML 9.9",
        b"--- 1\n--- 2",
        b"[1,2",
        b"9" * 5000,
        b"@",
        b"`",
        b"\t",
        b"[" * 2000,
    ),
    b"{x: &a [1,1], y: &b [*a,*a,*a,*a], z: &c [*b,*b,*b,*b], w: &d [*c,*c,*c,*c], v: [*d,*d,*d,*d]}",
)


class Settings(Target):
    """YAML settings of a run or a sweep."""

    def __init__(self, name: str, share: int) -> None:
        from faverage.experiment import ConfigError

        self.name, self.share, self.refusals = name, share, (ConfigError,)

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change values by YAML's own oddities, or the text."""
        data = _RUN if self.name == "run-yaml" else _SWEEP
        lines = data.split(b"\n")
        if rng.random() < 0.6:
            for _ in range(rng.choice((1, 1, 2))):
                k = rng.randrange(len(lines))
                name, colon, _ = lines[k].partition(b":")
                lines[k] = name + colon + b" " + rng.choice(_YAML) if rng.random() < 0.9 else rng.choice(_YAML)
            data = b"\n".join(lines)
        else:
            data = change_text(rng, data, (_RUN, _SWEEP))
        (work / "settings.yaml").write_bytes(data)

    def read(self, rng: Random, work: Path) -> None:
        """The settings can be written down."""
        file = work / "settings.yaml"
        if self.name == "run-yaml":
            from faverage.experiment import RunConfig

            config = RunConfig.build(None, file, {"jobs": 1})
        else:
            from faverage.experiment.sweep.plan import Plan, label_of

            plan = Plan.read(file)
            config = plan.config
            "".join(label_of(cell.options) for cell in plan.cells).encode()
        json.dumps(config.to_dict(), ensure_ascii=False, allow_nan=False).encode()


class FinishedRun(Target):
    """The folder of a run, for ``train --from-run``."""

    name, share, writes = "from-run", 400, True

    def __init__(self) -> None:
        from faverage.app.model import ModelError
        from faverage.data import DataError
        from faverage.experiment import ConfigError

        self.refusals = (ConfigError, ModelError, DataError, ValueError, OSError)

    def prepare(self, examples: Path) -> None:
        """Copy a run's results and its base session."""
        run = sound.run_folder()
        shutil.copy(run / "results.json", examples / "results.json")
        file = next(run.glob("work/*/base.safetensors"))
        (examples / file.parent.name).mkdir()
        shutil.copy(file, examples / file.parent.name)

    def start(self, examples: Path) -> None:
        """Decoded images are found where the run left them."""
        os.environ["FAVERAGE_CACHE"] = str(sound.home() / "cache")

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change the settings in results.json, the whole of it, or the base session."""
        base = next(examples.glob("*/base.safetensors"))
        place = work / "run" / "work" / base.parent.name
        place.mkdir(parents=True)
        shutil.copy(base, place)
        text = (examples / "results.json").read_bytes()
        what = rng.random()
        if what < 0.45:
            results = json.loads(text)
            inner = change_json(rng, results["config"])
            text = json.dumps({**results, "config": "@config@"}).replace('"@config@"', inner).encode("utf-8", "replace")
        elif what < 0.8:
            text = change_json_file(rng, text)
        else:
            change_file(rng, place / base.name, change_tensors)
        (work / "run" / "results.json").write_bytes(text)

    def read(self, rng: Random, work: Path) -> None:
        """The new model answers."""
        from faverage.app.train import train_from_run

        made = train_from_run(work / "run", work / "model", device="cpu")
        check_probabilities([p for _, p in made.model.predict([sound.picture()])[0].top])


class Weights(Target):
    """A checkpoint of a backbone, ``load_weights``."""

    name, share, refusals = "weights", 400, (ValueError, OSError)

    def prepare(self, examples: Path) -> None:
        """Write weights as safetensors and as torch does."""
        import torch
        from safetensors.torch import save_file

        from faverage.vision import get_backbone

        torch.manual_seed(0)
        state = get_backbone("tiny").state_dict()
        save_file(state, examples / "tiny.safetensors")
        torch.save(state, examples / "tiny.pth")
        torch.save(
            {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, examples / "wrapped.pt"
        )
        small = {"a": torch.zeros(2), "b": [1, 2], "c": "text"}
        torch.save(small, examples / "small.pth")

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one."""
        file = rng.choice(sorted(examples.iterdir()))
        change = change_tensors if file.suffix == ".safetensors" else rng.choice((change_bytes, change_zip))
        (work / file.name).write_bytes(change(rng, file.read_bytes()))

    def read(self, rng: Random, work: Path) -> None:
        """All weights are finite."""
        import torch

        from faverage.vision import get_backbone, load_weights

        module = load_weights(get_backbone("tiny"), next(work.iterdir()))
        if not all(torch.isfinite(tensor).all() for tensor in module.state_dict().values()):
            raise Broken("weights are not finite")


class Archive(Target):
    """The data folders of benchmarks: zip archives with lists, CIFAR's pickles, a folder of photos."""

    def __init__(self, name: str, share: int) -> None:
        from faverage.data import DataError

        self.name, self.share, self.refusals, self.seconds = name, share, (DataError,), 30.0

    def prepare(self, examples: Path) -> None:
        """Write the drawings of a benchmark."""
        root = examples / "data"
        write: Any = {"zip": sound.mini_imagenet, "cifar": sound.cifar, "photos": sound.photos}[self.name]
        write(root)

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change an archive, a list, a pickle or a photo."""
        root = work / "data"
        _copy(examples / "data", root)
        for _ in range(rng.choice((1, 1, 3))):
            files = sorted(path for path in root.rglob("*") if path.is_file())
            archives = [file for file in files if file.suffix == ".zip"]
            file = rng.choice(archives if archives and rng.random() < 0.6 else files)
            change = {".zip": change_zip, ".txt": change_text}.get(file.suffix, change_bytes)
            if rng.random() < 0.05:
                _upset(rng, root, file)
            elif rng.random() < 0.05:
                file.rename(file.with_name(rng.choice(("\x1b[31m.jpg", "\udcff.jpg", "é.jpg", "e\u0301.jpg", " .jpg"))))
            else:
                change_file(rng, file, change)

    def read(self, rng: Random, work: Path) -> None:
        """Images and labels fit, and so do the sessions."""
        import warnings

        from faverage.data import load_benchmark

        names = {"zip": "mini-imagenet", "cifar": "cifar100", "photos": "folder"}
        small: dict[str, Any] = {} if self.name == "photos" else {"base": 3, "way": 2, "sessions": 2}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cache = work.parent / "cache"
            given: dict[str, Any] = {"cache": cache, "workers": 1, "progress": False, "shots": 2 if not small else 5}
            try:
                found = load_benchmark(names[self.name], work / "data", **given, **small)
            finally:
                shutil.rmtree(cache, ignore_errors=True)
        if len(found.images) != len(found.labels) or not len(found.images):
            raise Broken("images do not fit their labels")
        if any(index >= len(found.images) for session in found.sessions for index in (*session.train, *session.test)):
            raise Broken("a session names images that are not there")


class Picture(Target):
    """A picture, ``open_picture``."""

    name, share = "picture", 1400

    def __init__(self) -> None:
        from faverage.app.model import ModelError

        self.refusals = (ModelError,)

    def prepare(self, examples: Path) -> None:
        """Write pictures of every format and mode."""
        for name, data in sound.pictures().items():
            (examples / name).write_bytes(data)

    def start(self, examples: Path) -> None:
        """Keep all bytes, to splice them."""
        self.all = [file.read_bytes() for file in sorted(examples.iterdir())]

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one; PNG files by their chunks."""
        file = rng.choice(sorted(examples.iterdir()))
        data = file.read_bytes()
        png = file.suffix == ".png" and rng.random() < 0.7
        (work / file.name).write_bytes(change_png(rng, data) if png else change_bytes(rng, data, self.all))

    def read(self, rng: Random, work: Path) -> None:
        """What comes out is plain RGB, and makes a square and a thumbnail."""
        from faverage.app.photos import open_picture, squares, thumbnails

        image = open_picture(next(work.iterdir()).read_bytes())
        if image.mode != "RGB" or image.info or squares([image], 16).shape != (1, 16, 16, 3):
            raise Broken(f"a picture of mode {image.mode} with {sorted(image.info)}")
        thumbnails([image])


def file_targets() -> list[Target]:
    """Return all targets that are files or folders."""
    return [
        ModelFolder(),
        FinishedRun(),
        Picture(),
        Archive("zip", 200),
        Archive("photos", 100),
        Archive("cifar", 150),
        Learner(),
        Predictions("csv", 1400, change_text),
        Predictions("npz", 900, change_npz),
        Predictions("parquet", 300, change_parquet),
        LabelFile(),
        Fuse(),
        Apply(),
        Network(),
        FuserFile(),
        Features(),
        Settings("run-yaml", 600),
        Settings("sweep-yaml", 300),
        Weights(),
    ]
