"""Targets of runs: features, settings, what a run left, weights."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from random import Random

import numpy as np

from faverage.errors import CheckpointError
from fuzz import examples as sound
from fuzz.common import change_file, check_probabilities
from fuzz.formats import change_npz, change_tensors, change_zip
from fuzz.mutate import change_bytes, change_json, change_json_file, change_text
from fuzz.target import Broken, Target

__all__ = ["Features", "FinishedRun", "Settings", "Weights"]


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
        np.savez(examples / "two.npz", **arrays, views=np.array(["plain", "rotate-90"]))

    def make(self, rng: Random, examples: Path, work: Path) -> None:
        """Change one."""
        data = rng.choice(sorted(examples.iterdir())).read_bytes()
        (work / "features.npz").write_bytes(change_npz(rng, data))

    def read(self, rng: Random, work: Path) -> None:
        """Everything is finite, and of shapes that fit."""
        from faverage.experiment import RunConfig
        from faverage.features import FeatureSet

        file = work / "features.npz"
        config = RunConfig.build("folder", None, {"features": str(file), "jobs": 1, "methods": "prototypes"})
        found = FeatureSet.load(file, config.views)
        for view, x in found.views.items():
            if not np.isfinite(x).all() or not np.isfinite(found.prototypes[view]).all():
                raise Broken("features are not finite")
            if len(x) != len(found.labels) or found.heads[view].weight.shape != found.prototypes[view].shape:
                raise Broken("features do not fit their labels, or heads their prototypes")
        if sum(map(len, (found.memory, found.test, *found.shots))) != len(found.labels):
            raise Broken("examples are neither memory, shots nor tests")


_RUN = b"""\
# a run
dataset: digits
methods: [prototypes, afa]
epochs: 3
batch_size: 32
lr: 1e-2
seeds: [0, 1, 2]
draws: 2
views: [plain, rotate-90]
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
  views: [[plain], [plain, rotate-90]]
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

        self.refusals = (ConfigError, ModelError, DataError, ValueError, OSError, FloatingPointError)

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

    name, share, refusals = "weights", 400, (CheckpointError, ValueError, OSError)

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
