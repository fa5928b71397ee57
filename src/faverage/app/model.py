"""A model in a folder: it is asked, taught, made to forget, and every change can be undone."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from faverage.afa.explain import Explanation
from faverage.app.create import write_model
from faverage.app.folder import Folder, State
from faverage.app.names import BusyError, ModelError, clean_name
from faverage.app.parts import Base, ClassInfo, Now, Taught, entry, light, load_base, merged, spelled, told
from faverage.app.photos import open_picture, png, squares, thumbnails
from faverage.app.why import Answer, answered, answers, compared, confusions
from faverage.fscil import FewShotLearner
from faverage.fscil.relearn import relearn, restored, shots_of

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
        self.folder, self._device = Path(folder), device
        self._files = Folder(self.folder)
        self._loading = threading.Lock()
        self._now = self._read(None)

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
        return self._now.side

    @property
    def learner(self) -> FewShotLearner:
        """The present learner; its inputs are ``squares`` of pictures, and it must not be changed."""
        return self._fresh().learner

    def classes(self) -> list[ClassInfo]:
        """Return what the model knows: the base classes, then what was taught, in order."""
        return list(self._fresh().classes)

    def history(self) -> list[dict[str, Any]]:
        """Return all changes, oldest first: when, what, class, pictures, and the same in words."""
        return copy.deepcopy(self._fresh().record.get("history") or [])

    def explain(self) -> Explanation:
        """Return which head is trusted for which class, and with which mean."""
        learner = self._fresh().learner
        if len(learner.heads) == 1:
            raise ModelError("there is nothing to explain yet, since the base head alone answers: teach a class first")
        try:
            return learner.explain()
        except ValueError as error:
            raise ModelError(f"the fuser '{learner.fuser}' cannot be explained: {error}") from None

    def predict(self, images: Iterable[Image.Image]) -> list[Answer]:
        """Say what each picture shows; all are looked at in one go, by one state of the model.

        Pictures that an iterator opens are made small one by one: of large ones, no two are in memory.
        """
        now = self._fresh()
        small = [squares([image], now.side) for image in images]
        return answers(now.learner, self._look(now, np.concatenate(small))) if small else []

    def teach(self, name: str, images: Iterable[Image.Image]) -> Taught:
        """Teach a new class, or add pictures to one that was taught before; ModelError changes nothing."""
        return self.teach_many({name: images})[0]

    def teach_many(self, pictures: Mapping[str, Iterable[Image.Image]]) -> list[Taught]:
        """Teach several classes in one change, which is also undone as one; see ``predict`` on iterators."""
        before = self._fresh()
        named: dict[str, Iterable[Image.Image]] = {}
        for name, images in pictures.items():
            clean = clean_name(name)
            if clean in named:
                raise ModelError(f"the class '{clean}' is named twice: give all of its pictures at once")
            if spelled(clean, before.base.learner.classes) in before.base.learner.classes:
                raise ModelError(f"'{clean}' is a base class, which the model knows already: choose another name")
            named[clean] = images
        if not named:
            raise ModelError("there is nothing to teach: give a name and at least one picture")
        looked = {name: self._seen(before, name, images) for name, images in named.items()}
        with self._changing() as now:
            if now.base is not before.base:
                raise BusyError(f"{self.folder} was replaced by another model just now: try again")
            sessions = shots_of(now.learner)
            known = {name for session in sessions for name in session}
            given = {spelled(name, [*known]): found for name, found in looked.items()}
            seen = {name: x for name, (x, _) in given.items()}
            for session in sessions:
                session |= {c: np.concatenate([session[c], x]) for c, x in seen.items() if c in session}
            sessions.append({name: x for name, x in seen.items() if name not in known})
            shown = {**now.thumbnails}
            for name, (_, pixels) in given.items():
                shown[name] = np.concatenate([shown[name], pixels])[:5] if name in known else pixels
            learner = relearn(now.base.learner, merged(sessions))
            said = answered(learner)
            right, confused = confusions(said)
            check = compared(answered(now.learner), said)
            entries = [told(name, len(x), name in known) for name, x in seen.items()]
            self._commit(now, learner, shown, entries)
        return [Taught(name, len(said[name]), right[name], confused, *check) for name in seen]

    def forget(self, name: str) -> None:
        """Forget a taught class: the model is then as if it had never been taught it."""
        name = clean_name(name)
        with self._changing() as now:
            base = now.base.learner
            name = spelled(name, now.learner.classes)
            if name in base.classes:
                raise ModelError(f"'{name}' is a base class and cannot be forgotten; only what was taught can")
            if name not in now.learner.classes:
                taught = ", ".join(f"'{c}'" for c in now.learner.classes[len(base.classes) :]) or "nothing"
                raise ModelError(f"the model does not know '{name}'; taught so far: {taught}")
            sessions = [{c: x for c, x in session.items() if c != name} for session in shots_of(now.learner)]
            shown = {c: pixels for c, pixels in now.thumbnails.items() if c != name}
            count = len(next(s[name] for s in shots_of(now.learner) if name in s))
            line = entry("forget", name, count, f"forgot '{name}'")
            self._commit(now, relearn(base, sessions), shown, [line])

    def undo(self) -> str:
        """Undo the last change that was not undone yet, a teaching or a forgetting; return what it was, in words."""
        with self._changing() as now:
            states = now.record["states"]
            if len(states) < 2:
                raise ModelError("there is nothing to undo: the model is as it was made, or as far back as is kept")
            undone = [line for line in (now.record.get("history") or []) if line.get("state") == states[-1]]
            words = " and ".join(str(line.get("words")) for line in undone) or "the last change"
            name = undone[0].get("class") if len(undone) == 1 else None
            count = sum(int(line.get("pictures") or 0) for line in undone)
            self._write(now, states[:-1], [entry("undo", name, count, f"undid: {words}")])
        return words

    # ------------------------------------------------------------------------------------------------------------------

    def _look(self, now: Now, small: Array) -> Array:
        features = now.base.look(small)
        if not np.isfinite(features).all():
            raise ModelError(f"the network in {self.folder} answers with numbers that are not finite: it is damaged")
        return features

    def _seen(self, now: Now, name: str, images: Iterable[Image.Image]) -> tuple[Array, Array]:
        """Return features and thumbnails of pictures, which are looked at one by one."""
        found = [(squares([image], now.side), thumbnails([image] if i < 5 else [])) for i, image in enumerate(images)]
        if not found:
            raise ModelError(f"there is no picture of '{name}': give at least one; five are a good number")
        small, shown = (np.concatenate(part) for part in zip(*found, strict=True))
        return self._look(now, small), shown

    def _fresh(self) -> Now:
        """Return the present state; where another process changed the folder, what it made of it."""
        now = self._now
        if self._files.signature() == now.signature:
            return now
        with self._loading, suppress(OSError, ModelError):  # a folder that was moved away does not stop those who ask
            if self._now.signature != self._files.signature():
                self._now = self._read(self._now.base)
        return self._now

    def _read(self, base: Base | None) -> Now:
        """Read the state that counts, and the base classes unless ``base`` is what they are.

        Once more where they were replaced meanwhile.
        """
        for attempt in range(10):
            signature = self._files.signature()
            try:
                record = self._files.read()
                if base is None or base.id != (record.get("base_id") or self._files.base_id()):
                    base = load_base(self._files, record, self._device)
                return self._put(record, signature, base)
            except ModelError:
                if attempt == 9 or signature == self._files.signature():
                    raise
        raise AssertionError("unreachable")

    def _put(self, record: dict[str, Any], signature: tuple[int, int, int], base: Base) -> Now:
        state = self._files.read_state(record["states"][-1], len(base.learner.classes))
        try:
            learner = restored(base.learner, state.sessions, state.fuser)
        except ValueError as error:
            raise ModelError(f"the state in {self.folder} does not fit its base classes: {error}") from None
        shown = {**base.shown, **{c: tuple(map(png, pixels)) for c, pixels in state.thumbnails.items()}}
        counts = {**base.counts, **{c: len(x) for session in state.sessions for c, x in session.items()}}
        classes = tuple(
            ClassInfo(c, counts.get(c, 0), k, shown.get(c, ()))
            for k, session in enumerate(learner.sessions)
            for c in session
        )
        return Now(base, record, signature, learner, state.thumbnails, classes)

    @contextmanager
    def _changing(self) -> Iterator[Now]:
        """Give the present state to one writer at a time, in this process and in all others."""
        with self._files.locked():
            if self._files.signature() != self._now.signature:
                with self._loading:
                    self._now = self._read(self._now.base)
            yield self._now

    def _commit(
        self, now: Now, learner: FewShotLearner, small: dict[str, Array], entries: list[dict[str, Any]]
    ) -> None:
        """Write a new state, then make it the one that counts."""
        name = f"{now.record['version'] + 1:06d}"
        self._files.write_state(name, State(shots_of(learner), small, light(learner)))
        self._write(now, [*now.record["states"], name][-KEPT_STATES - 1 :], [{**e, "state": name} for e in entries])

    def _write(self, now: Now, states: list[str], entries: list[dict[str, Any]]) -> None:
        history = [*(now.record.get("history") or []), *entries][-KEPT_HISTORY:]
        base = now.base.learner.classes
        state = self._files.read_state(states[-1], len(base))  # what cannot be read does not become the one that counts
        names = [*base, *(c for session in state.sessions for c in session)]
        change = {"version": now.record["version"] + 1, "classes": names, "states": states, "history": history}
        self._files.write({**now.record, "base_id": now.base.id, **change})
        with self._loading:
            self._now = self._read(now.base)
