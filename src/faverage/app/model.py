"""A model in a folder: it is asked, taught, made to forget, and every change can be undone."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from faverage.app.create import write_model
from faverage.app.folder import Folder, State
from faverage.app.names import ModelError, clean_name
from faverage.app.parts import ClassInfo, Now, Taught, entry, light, merged, told
from faverage.app.photos import open_picture, png, squares, thumbnails
from faverage.app.why import Answer, answers, confusions
from faverage.explain import Explanation
from faverage.fscil import FewShotLearner
from faverage.fscil.relearn import base_of, relearn, shots_of
from faverage.storage import read_tensors
from faverage.vision import Eyes

__all__ = ["Answer", "ClassInfo", "Model", "ModelError", "Taught", "clean_name", "open_picture"]

Array = NDArray[Any]

KEPT_STATES = 20  # how many changes can be undone
KEPT_HISTORY = 1000


class Model:
    """A learner of images that lives in a folder.

    Threads may use one object together, and processes one folder: whoever asks sees the model before or after a change,
    and whoever changes it waits for the others. Make one with ``create`` or ``load``.

    Attributes:
        folder: where it lives.
    """

    def __init__(self, folder: str | Path, *, device: str = "auto") -> None:
        self.folder = Path(folder)
        self._files = Folder(self.folder)
        self._writing, self._loading = threading.Lock(), threading.Lock()
        record = self._files.read()
        try:
            base = FewShotLearner.load(self._files.base, device=device)
            self._base = base_of(base)
            self._base.backbone = Eyes(base.backbone.model, device)  # type: ignore[union-attr]
            _, tensors = read_tensors(self._files.base / "thumbnails.safetensors", "thumbnails")
            self._counts = {str(b["name"]): int(b["count"]) for b in record.get("base", [])}
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            raise ModelError(
                f"the base classes in {self._files.base} cannot be read ({error}): restore the folder from a copy"
            ) from None
        pictures = {name: tensors.get(str(i)) for i, name in enumerate(self._base.classes)}
        self._shown = {c: () if t is None else tuple(map(png, t.numpy())) for c, t in pictures.items()}
        self._now = self._read()

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto") -> Model:
        """Read a model; ModelError says what is wrong with the folder."""
        return cls(folder, device=device)

    @classmethod
    def create(
        cls,
        folder: str | Path,
        learner: FewShotLearner,
        *,
        side: int,
        counts: Mapping[str, int] | None = None,
        thumbnails: Mapping[str, Sequence[Image.Image | NDArray[np.uint8]]] | None = None,
        device: str = "auto",
    ) -> Model:
        """Write a learner to a new folder and return it as a model.

        Args:
            folder: must not exist yet, or be empty.
            learner: with a backbone given by name or as a ``BaseModel``, and text for labels.
            side: of the images that the learner was trained on.
            counts: number of pictures that each base class was learned from.
            thumbnails: a few pictures of each class.
            device: where the returned model works.
        """
        write_model(Path(folder), learner, side, counts or {}, thumbnails or {})
        return cls(folder, device=device)

    @property
    def version(self) -> int:
        """A number that grows with every change."""
        return int(self._fresh().record["version"])

    @property
    def side(self) -> int:
        """Side of the squares that pictures are brought to."""
        return int(self._now.record["side"])

    @property
    def learner(self) -> FewShotLearner:
        """The present learner; its inputs are ``squares`` of pictures, and it must not be changed."""
        return self._fresh().learner

    def classes(self) -> list[ClassInfo]:
        """Return what the model knows: the base classes, then what was taught, in order."""
        return list(self._fresh().classes)

    def history(self) -> list[dict[str, Any]]:
        """Return all changes, oldest first: when, what, class, pictures, and the same in words."""
        return copy.deepcopy(self._fresh().record.get("history", []))

    def explain(self) -> Explanation:
        """Return which head is trusted for which class, and with which mean."""
        learner = self._fresh().learner
        if len(learner.heads) == 1:
            raise ModelError("there is nothing to explain yet, since the base head alone answers: teach a class first")
        try:
            return learner.explain()
        except ValueError as error:
            raise ModelError(f"the fuser '{learner.fuser}' cannot be explained: {error}") from None

    def predict(self, images: Sequence[Image.Image]) -> list[Answer]:
        """Say what each picture shows; all are looked at in one go, by one state of the model."""
        now = self._fresh()
        if not images:
            return []
        return answers(now.learner, self._look(images))

    def teach(self, name: str, images: Sequence[Image.Image]) -> Taught:
        """Teach a new class, or add pictures to one that was taught before; ModelError changes nothing."""
        return self.teach_many({name: images})[0]

    def teach_many(self, pictures: Mapping[str, Sequence[Image.Image]]) -> list[Taught]:
        """Teach several classes in one change, which is also undone as one."""
        named: dict[str, Sequence[Image.Image]] = {}
        for name, images in pictures.items():
            clean = clean_name(name)
            if clean in named:
                raise ModelError(f"the class '{clean}' is named twice: give all of its pictures at once")
            if not len(images):
                raise ModelError(f"there is no picture of '{clean}': give at least one; five are a good number")
            self._check_new(clean)
            named[clean] = images
        if not named:
            raise ModelError("there is nothing to teach: give a name and at least one picture")
        seen = {name: self._look(images) for name, images in named.items()}
        small = {name: thumbnails(images) for name, images in named.items()}
        with self._changing() as now:
            sessions = shots_of(now.learner)
            known = {name for session in sessions for name in session}
            for session in sessions:
                session |= {c: np.concatenate([session[c], x]) for c, x in seen.items() if c in session}
            sessions.append({name: x for name, x in seen.items() if name not in known})
            shown = {**now.thumbnails}
            for name, pixels in small.items():
                shown[name] = np.concatenate([shown[name], pixels])[:5] if name in known else pixels
            learner = relearn(self._base, merged(sessions))
            right, confused = confusions(learner)
            entries = [told(name, len(x), name in known) for name, x in seen.items()]
            self._commit(now, learner, shown, entries)
        counts = {c: len(x) for session in shots_of(learner) for c, x in session.items()}
        return [Taught(name, counts[name], right[name], confused) for name in named]

    def forget(self, name: str) -> None:
        """Forget a taught class: the model is then as if it had never been taught it."""
        name = clean_name(name)
        with self._changing() as now:
            if name in self._base.classes:
                raise ModelError(f"'{name}' is a base class and cannot be forgotten; only what was taught can")
            if name not in now.learner.classes:
                taught = ", ".join(f"'{c}'" for c in now.learner.classes[len(self._base.classes) :]) or "nothing"
                raise ModelError(f"the model does not know '{name}'; taught so far: {taught}")
            sessions = [{c: x for c, x in session.items() if c != name} for session in shots_of(now.learner)]
            shown = {c: pixels for c, pixels in now.thumbnails.items() if c != name}
            count = len(next(s[name] for s in shots_of(now.learner) if name in s))
            line = entry("forget", name, count, f"forgot '{name}'")
            self._commit(now, relearn(self._base, sessions), shown, [line])

    def undo(self) -> str:
        """Undo the last change that was not undone yet, a teaching or a forgetting; return what it was, in words."""
        with self._changing() as now:
            states = now.record["states"]
            if len(states) < 2:
                raise ModelError("there is nothing to undo: the model is as it was made, or as far back as is kept")
            undone = [line for line in now.record.get("history", []) if line.get("state") == states[-1]]
            words = " and ".join(str(line.get("words")) for line in undone) or "the last change"
            name = undone[0].get("class") if len(undone) == 1 else None
            count = sum(int(line.get("pictures") or 0) for line in undone)
            self._write(now, states[:-1], [entry("undo", name, count, f"undid: {words}")])
        return words

    # ------------------------------------------------------------------------------------------------------------------

    def _look(self, images: Sequence[Image.Image]) -> Array:
        assert self._base.backbone is not None
        features: Array = self._base.backbone(squares(images, self.side))
        return features

    def _check_new(self, name: str) -> None:
        if name in self._base.classes:
            raise ModelError(f"'{name}' is a base class, which the model knows already: choose another name")

    def _fresh(self) -> Now:
        """Return the present state; where another process changed the folder, what it made of it."""
        now = self._now
        try:
            if self._files.signature() == now.signature:
                return now
            with self._loading:
                if self._now.signature != self._files.signature():
                    self._now = self._read()
        except (OSError, ModelError):  # a folder that was moved away does not stop those who ask
            pass
        return self._now

    def _read(self) -> Now:
        """Read the state that counts; once more where it was replaced meanwhile."""
        for attempt in range(10):
            signature = self._files.signature()
            record = self._files.read()
            try:
                state = self._files.read_state(record["states"][-1])
                break
            except ModelError:
                if attempt == 9 or signature == self._files.signature():
                    raise
        try:
            learner = relearn(self._base, state.sessions, fitted=state.fuser)
        except ValueError as error:
            raise ModelError(f"the state in {self.folder} does not fit its base classes: {error}") from None
        return self._put(record, signature, learner, state.thumbnails)

    def _put(
        self, record: dict[str, Any], signature: tuple[int, int, int], learner: FewShotLearner, small: dict[str, Array]
    ) -> Now:
        shown = {**self._shown, **{c: tuple(map(png, pixels)) for c, pixels in small.items()}}
        counts = {**self._counts, **{c: len(x) for session in shots_of(learner) for c, x in session.items()}}
        classes = tuple(
            ClassInfo(c, counts.get(c, 0), k, shown.get(c, ()))
            for k, session in enumerate(learner.sessions)
            for c in session
        )
        return Now(record, signature, learner, small, classes)

    @contextmanager
    def _changing(self) -> Iterator[Now]:
        """Give the present state to one writer at a time, in this process and in all others."""
        with self._writing, self._files.locked():
            if self._files.signature() != self._now.signature:
                with self._loading:
                    self._now = self._read()
            yield self._now

    def _commit(
        self, now: Now, learner: FewShotLearner, small: dict[str, Array], entries: list[dict[str, Any]]
    ) -> None:
        """Write a new state, then make it the one that counts."""
        name = f"{now.record['version'] + 1:06d}"
        self._files.write_state(name, State(shots_of(learner), small, light(learner)))
        self._write(now, [*now.record["states"], name][-KEPT_STATES - 1 :], [{**e, "state": name} for e in entries])

    def _write(self, now: Now, states: list[str], entries: list[dict[str, Any]]) -> None:
        history = [*now.record.get("history", []), *entries][-KEPT_HISTORY:]
        state = self._files.read_state(states[-1])  # what cannot be read does not become the one that counts
        names = [*self._base.classes, *(c for session in state.sessions for c in session)]
        version = now.record["version"] + 1
        record = {**now.record, "version": version, "classes": names, "states": states, "history": history}
        self._files.write(record)
        with self._loading:
            self._now = self._read()
