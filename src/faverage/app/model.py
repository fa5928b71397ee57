"""A model in a folder: it is asked, taught, made to forget, and every change can be undone."""

from __future__ import annotations

import copy
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from faverage.afa.explain import Explanation
from faverage.app.folder import Folder, State, entry, light, small_pictures, write_model
from faverage.app.names import BusyError, ModelError, check_stored, clean_name, pictures_of
from faverage.app.photos import open_picture, png, squares, thumbnails
from faverage.app.why import Answer, answered, answers, compared, confusions
from faverage.fscil import FewShotLearner
from faverage.fscil.files import check_array
from faverage.fscil.relearn import base_of, relearn, restored, shots_of
from faverage.storage import read_tensors
from faverage.vision.engine.device import pick_device

__all__ = ["Answer", "ClassInfo", "Model", "ModelError", "Taught", "clean_name", "open_picture"]

Array = NDArray[Any]

KEPT_STATES = 20  # how many changes can be undone
KEPT_HISTORY = 1000
MOST_SESSIONS = 8  # taught sessions with a head of their own; older ones share the first, so that teaching stays quick


@dataclass(frozen=True)
class ClassInfo:
    """What a model knows of a class.

    Attributes:
        name: of the class.
        count: number of pictures that it was learned from.
        session: 0 is the base session.
        thumbnails: up to five small PNG files.
    """

    name: str
    count: int
    session: int
    thumbnails: tuple[bytes, ...]


@dataclass(frozen=True)
class Taught:
    """How it went.

    Attributes:
        name: of the class.
        count: pictures that it is now learned from.
        right: share of them that the model recognises, each left out in turn and compared with the others; a single
            one cannot be left out.
        confused: (class, answer, how often) among all taught pictures and the held-out ones of base classes.
        before: share of right answers to these pictures of the classes that were known before, before the change.
        after: the same after it.
        worse: whether those classes lost more than chance explains, see ``faverage.app.why.compared``.
    """

    name: str
    count: int
    right: float
    confused: tuple[tuple[str, str, int], ...]
    before: float
    after: float
    worse: bool


@dataclass(frozen=True)
class Base:
    """What a model was made with.

    Attributes:
        id: hash of its files.
        learner: of the base classes alone, with its backbone on the device.
        counts: number of pictures of each class.
        shown: their thumbnails.
    """

    id: str
    learner: FewShotLearner
    counts: dict[str, int]
    shown: dict[str, tuple[bytes, ...]]

    def look(self, squares: Array) -> Array:
        """Return the features of squares, uint8 ``(n, side, side, 3)``."""
        assert self.learner.backbone is not None
        features: Array = self.learner.backbone(squares)
        return features


@dataclass(frozen=True)
class Now:
    """A model between two changes: nothing in it is ever changed."""

    base: Base
    record: dict[str, Any]
    signature: tuple[int, int, int]
    learner: FewShotLearner
    thumbnails: dict[str, Array]
    classes: tuple[ClassInfo, ...]

    @property
    def side(self) -> int:
        """Side of the squares that pictures are brought to."""
        return int(self.record["side"])


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
            if _spelled(clean, before.base.learner.classes) in before.base.learner.classes:
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
            given = {_spelled(name, [*known]): found for name, found in looked.items()}
            seen = {name: x for name, (x, _) in given.items()}
            for session in sessions:
                session |= {c: np.concatenate([session[c], x]) for c, x in seen.items() if c in session}
            sessions.append({name: x for name, x in seen.items() if name not in known})
            shown = {**now.thumbnails}
            for name, (_, pixels) in given.items():
                shown[name] = np.concatenate([shown[name], pixels])[:5] if name in known else pixels
            learner = relearn(now.base.learner, _merged(sessions))
            said = answered(learner)
            right, confused = confusions(said)
            check = compared(answered(now.learner), said)
            entries = [_told(name, len(x), name in known) for name, x in seen.items()]
            self._commit(now, learner, shown, entries)
        return [Taught(name, len(said[name]), right[name], confused, *check) for name in seen]

    def forget(self, name: str) -> None:
        """Forget a taught class: the model is then as if it had never been taught it."""
        name = clean_name(name)
        with self._changing() as now:
            base = now.base.learner
            name = _spelled(name, now.learner.classes)
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
                    base = _load_base(self._files, record, self._device)
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


def _load_base(files: Folder, record: dict[str, Any], device: str) -> Base:
    """Read what a model was made with; ModelError where it is broken, or is not what the record belongs to."""
    try:
        learner = base_of(FewShotLearner.load(files.base, device=device))
        learner.classes = [check_stored(label) for label in learner.classes]
        _check_device(device)
        learner.backbone.ready(batch_size=128)  # type: ignore[union-attr]
        _, tensors = read_tensors(files.base / "thumbnails.safetensors", "thumbnails")
        pictures = [small_pictures(tensors[str(i)]) if str(i) in tensors else () for i in range(len(learner.classes))]
        shown = {c: tuple(map(png, pixels)) for c, pixels in zip(learner.classes, pictures, strict=True)}
        counts = {b["name"]: b["count"] for b in record.get("base") or []}
        base = Base(files.base_id(), learner, counts, shown)
        noise = np.random.default_rng(0).integers(0, 256, (1, record["side"], record["side"], 3), dtype=np.uint8)
        check_array("what the network makes of noise", base.look(noise), 1, learner.prototypes.shape[1])
    except ModelError:
        raise
    except (OSError, ValueError, AttributeError, LookupError, TypeError, RuntimeError, MemoryError) as error:
        raise ModelError(
            f"the base classes in {files.base} cannot be read ({error}): restore the folder from a copy"
        ) from None
    if record.get("base_id") not in (None, base.id):
        raise ModelError(
            f"the base classes in {files.base} are not those of model.json: restore the folder from a copy"
        )
    return base


def _check_device(device: str) -> None:
    try:
        pick_device(device)
    except ValueError as error:  # that there is no such device is not the folder's fault
        raise ModelError(f"{error} (in a command: --device cpu)") from None


def _spelled(name: str, classes: list[str]) -> str:
    """Return a clean name as the model has it, which may be in decomposed characters."""
    return next((c for c in classes if unicodedata.normalize("NFC", c) == name), name)


def _merged(sessions: list[dict[str, Array]]) -> list[dict[str, Array]]:
    """Return at most ``MOST_SESSIONS`` sessions: the oldest ones become one."""
    sessions = [session for session in sessions if session]
    extra = len(sessions) - MOST_SESSIONS
    if extra <= 0:
        return sessions
    first: dict[str, Array] = {}
    for session in sessions[: extra + 1]:
        first |= session
    return [first, *sessions[extra + 1 :]]


def _told(name: str, count: int, known: bool) -> dict[str, Any]:
    """Return the line of the history for pictures of a new class, or of one that was known."""
    if known:
        return entry("add", name, count, f"added {pictures_of(count)} to '{name}'")
    return entry("teach", name, count, f"taught '{name}' from {pictures_of(count)}")
