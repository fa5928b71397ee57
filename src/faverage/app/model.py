"""A model in a folder: it is asked, taught, made to forget, and every change can be undone."""

from __future__ import annotations

import copy
import hashlib
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from faverage.afa.explain import Explanation
from faverage.app.folder import BaseFiles, Folder, State, entry, write_model
from faverage.app.names import BusyError, ModelError, clean_name, pictures_of
from faverage.app.own import as_model, check_given, is_own, module_of, own_module
from faverage.app.photos import least, open_picture, png, squares, thumbnails
from faverage.app.pictures import Pictures, example_id, example_ids, ids_of
from faverage.app.seen import look_at
from faverage.app.why import Answer, Examples, answered, answers, compared, confusions, examples_of
from faverage.fscil import FewShotLearner, Knowledge
from faverage.fscil.files import check_answers, check_array, warn_of_old_version, with_knowledge
from faverage.fscil.fusers import ALONE
from faverage.fscil.images import ImageBackbone
from faverage.fscil.why import similarity
from faverage.vision import BaseModel, Evaluate, Extractor
from faverage.vision.engine.device import pick_device

__all__ = ["Answer", "ClassInfo", "Model", "ModelError", "Taught", "clean_name", "open_picture"]

Array = NDArray[Any]

KEPT_STATES = 20  # how many changes can be undone
KEPT_HISTORY = 1000


@dataclass(frozen=True)
class ClassInfo:
    """What a model knows of a class."""

    name: str  # of the class
    count: int  # number of pictures that it was learned from
    session: int  # 0 is the base session
    thumbnails: tuple[bytes, ...]  # up to five small PNG files


@dataclass(frozen=True)
class Taught:
    """How it went."""

    name: str  # of the class
    count: int  # pictures that it is now learned from
    right: float  # share of the kept ones that it recognises, each left out in turn; a single one cannot be left out
    confused: tuple[tuple[str, str, int], ...]  # class, answer, how often; of taught pictures and held-out base ones
    before: float | None  # right answers to those of classes that were known before, before the change; None if none
    after: float | None  # the same after it
    worse: bool  # whether those classes lost more than chance explains, see ``faverage.app.why.compared``
    kept: int = 0  # pictures of the class that ``right`` is about; of base classes the model keeps only some
    again: int = 0  # pictures that were left out, since the model keeps them already


@dataclass(frozen=True)
class Base:
    """What a model was made with."""

    id: str  # hash of its files
    files: BaseFiles  # what they hold
    learner: FewShotLearner  # its options, and its backbone on the device; it knows nothing
    extractor: Extractor  # the backbone, ready on its device
    widths: dict[str, int]  # number of features of each view


@dataclass(frozen=True)
class Now:
    """A model between two changes: nothing in it is ever changed."""

    base: Base
    record: dict[str, Any]
    signature: tuple[int, int, int]
    learner: FewShotLearner
    state: State
    classes: tuple[ClassInfo, ...]

    @property
    def side(self) -> int:
        """Side of the squares that pictures are brought to."""
        return int(self.record["side"])


class _Lesson(NamedTuple):
    """Pictures of one class: features ``(n, d_v)`` by view, the n files to keep, hashes of their pixels, thumbnails.

    ``names`` are those of the n files that they came from; empty where they came from none.
    """

    views: dict[str, Array]
    files: list[bytes]
    pixels: list[bytes]
    thumbnails: Array
    names: list[str]


class Model:
    """A learner of images that lives in a folder.

    Threads may use one object together, and processes one folder: whoever asks sees the model before or after a change,
    and whoever changes it waits for the others. Make one with ``create`` or ``load``.

    Attributes:
        folder: where it lives.
    """

    def __init__(
        self, folder: str | Path, *, device: str = "auto", backbone: nn.Module | BaseModel | None = None
    ) -> None:
        self.folder, self._device, self._backbone = Path(folder), device, module_of(backbone)
        self._files = Folder(self.folder)
        self._loading = threading.Lock()
        self._named: dict[str, frozenset[str]] = {}  # by state, the examples that it has
        self._now = self._read(None)

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto", backbone: nn.Module | BaseModel | None = None) -> Model:
        """Read a model; ModelError says what is wrong with the folder.

        Where the backbone is a module of one's own, give this module, with the weights that it had when the model was
        made: code is never read from a folder.
        """
        return cls(folder, device=device, backbone=backbone)

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
            learner: with a backbone given by name, as a ``BaseModel`` or as a module of one's own, and text for labels;
                it may have base classes, taught ones, both, or know nothing yet.
            side: of the images that the backbone was trained on.
            counts: number of pictures that each class was learned from.
            thumbnails: a few pictures of each class.
            device: where the returned model works.
        """
        write_model(Path(folder), learner, side, counts or {}, thumbnails or {})
        own = own_module(learner.backbone) if is_own(learner.backbone) else None
        return cls(folder, device=device, backbone=own)

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

    @property
    def pictures(self) -> Pictures:
        """The pictures of kept examples, by name."""
        return Pictures(self.folder, self.side)

    def examples(self) -> Examples:
        """Return what the model keeps, and what it takes each example for that it did not learn from."""
        now = self._fresh()
        return examples_of(now.learner, int(now.record["version"]), now.state.counts, self.pictures.names())

    def classes(self) -> list[ClassInfo]:
        """Return what the model knows: the base classes, then what was taught, in order."""
        return list(self._fresh().classes)

    def history(self) -> list[dict[str, Any]]:
        """Return all changes, oldest first: when, what, class, pictures, and the same in words."""
        return copy.deepcopy(self._fresh().record.get("history") or [])

    def record(self) -> dict[str, Any]:
        """Return what model.json says."""
        return copy.deepcopy(self._fresh().record)

    def explain(self) -> Explanation:
        """Return which member is trusted for which class, and with which mean."""
        learner = self._fresh().learner
        if learner.fitted is None and learner.fuser not in ALONE:
            raise ModelError(
                "there is nothing to explain yet, since no weights were learned: teach another class first"
            )
        try:
            return learner.explain()
        except ValueError as error:
            raise ModelError(f"the fuser '{learner.fuser}' cannot be explained: {error}") from None

    def predict(self, images: Iterable[Image.Image]) -> list[Answer]:
        """Say what each picture shows; all are looked at in one go, by one state of the model.

        Pictures that an iterator opens are made small one by one: of large ones, no two are in memory.
        """
        now = self._fresh()
        if now.state.known is None:
            raise ModelError("the model knows no class yet: teach it one first")
        small = [squares([image], now.side) for image in images]
        return answers(now.learner, self._look(now, np.concatenate(small)), self.pictures) if small else []

    def predict_files(
        self, files: Sequence[Path], *, progress: Callable[[str, int, int], None] = lambda *_: None
    ) -> list[Answer | ModelError]:
        """Say what the picture in each file shows, or what is wrong with the file.

        Features are kept by what the files hold, see ``faverage.app.seen``: asking again takes moments.

        Args:
            files: of pictures of any format and size.
            progress: hears (what is done, files done, files in all).
        """
        now = self._fresh()
        if now.state.known is None:
            raise ModelError("the model knows no class yet: teach it one first")
        try:
            seen = look_at(files, now.base.extractor, now.side, progress=progress, what="looking at the pictures")
        except FloatingPointError as error:
            raise ModelError(f"the network in {self.folder} is damaged: {error}") from None
        found: list[Answer | ModelError] = [ModelError("")] * len(files)
        for place, wrong in seen.broken:
            found[place] = ModelError(wrong, what=files[place])
        if len(seen.kept):
            for place, answer in zip(seen.kept, answers(now.learner, seen.views), strict=True):
                found[place] = answer
        return found

    def teach(self, name: str, images: Iterable[Image.Image]) -> Taught:
        """Teach a new class, or add pictures to one that is known; ModelError changes nothing."""
        return self.teach_many({name: images})[0]

    def teach_many(self, pictures: Mapping[str, Iterable[Image.Image]]) -> list[Taught]:
        """Teach several classes in one change, which is also undone as one; see ``predict`` on iterators.

        Pictures that the model keeps of a class already are not learned twice, whether they come as they came before or
        as the model gave them out (``faverage.app.zips``).
        """
        before = self._fresh()
        named: dict[str, Iterable[Image.Image]] = {}
        for name, images in pictures.items():
            clean = clean_name(name)
            if clean in named:
                raise ModelError(f"the class '{clean}' is named twice: give all of its pictures at once")
            named[clean] = images
        if not named:
            raise ModelError("there is nothing to teach: give a name and at least one picture")
        looked = {name: self._seen(before, name, images) for name, images in named.items()}
        with self._changing() as now:
            if now.base is not before.base:
                raise BusyError(f"{self.folder} was replaced by another model just now: try again")
            old = now.learner.classes
            every = {_spelled(name, old): self._as_kept(now.state.known, lesson) for name, lesson in looked.items()}
            given = {name: _new_to(now.state.known, name, lesson) for name, lesson in every.items()}
            labels = [name for name, lesson in given.items() for _ in lesson.files]
            if not labels:
                raise ModelError(
                    "the model keeps all of these pictures already, and learns nothing from them: give others"
                )
            views = {
                view: np.concatenate([lesson.views[view] for lesson in given.values()]) for view in now.base.widths
            }
            known = now.state.known or Knowledge.empty({view: x.shape[1] for view, x in views.items()})
            names = [*([""] * len(known.labels)), *(name for lesson in given.values() for name in lesson.names)]
            learner = self._learned(now, lambda: known.taught(views, labels), names)
            counts, shown, entries = dict(now.state.counts), dict(now.state.thumbnails), []
            for name, lesson in given.items():
                new = len(lesson.files)
                counts[name] = counts.get(name, 0) + new
                shown[name] = (
                    np.concatenate([shown[name], lesson.thumbnails])[:5] if name in shown else lesson.thumbnails
                )
                entries += [_told(name, new, name in old)] if new else []
            said = answered(learner)
            right, confused = confusions(said)
            check = compared(answered(now.learner), said)
            files = [file for lesson in given.values() for file in lesson.files]
            self.pictures.keep(dict(zip(ids_of(views), files, strict=True)))
            self._commit(now, State(learner.known, counts, shown, learner.fitted), entries)
        again = {name: len(every[name].files) - len(lesson.files) for name, lesson in given.items()}
        return [Taught(c, counts[c], right[c], confused, *check, len(said[c]), again[c]) for c in given]

    def forget(self, name: str) -> None:
        """Forget a class: the model is then as if it had never been taught it, but for what its backbone has seen."""
        with self._changing() as now:
            name = self._known(now, name)
            known = now.learner.known
            learner = self._learned(now, lambda: known.without(name))
            rest = {c: n for c, n in now.state.counts.items() if c != name}
            shown = {c: pixels for c, pixels in now.state.thumbnails.items() if c != name}
            line = entry("forget", name, now.state.counts.get(name, 0), f"forgot '{name}'")
            left = learner.known if learner.classes else None
            self._commit(now, State(left, rest, shown, learner.fitted), [line])

    def rename(self, name: str, new: str) -> None:
        """Give a class another name; ModelError where another class has it."""
        new = clean_name(new)
        with self._changing() as now:
            name = self._known(now, name)
            others = [c for c in now.learner.classes if c != name]
            if _spelled(new, others) in others:
                raise ModelError(f"the model knows '{new}' already: choose another name, or forget that class first")
            if new == name:
                raise ModelError(f"the class is called '{name}' already: give another name")
            known = now.learner.known.renamed(name, new)
            counts = {new if c == name else c: n for c, n in now.state.counts.items()}
            shown = {new if c == name else c: pixels for c, pixels in now.state.thumbnails.items()}
            line = entry("rename", new, 0, f"renamed '{name}' to '{new}'")
            self._commit(now, State(known, counts, shown, now.learner.fitted), [line])

    def move(self, ids: Iterable[str], name: str) -> None:
        """Give kept examples to another class; ModelError where one is unknown, or the last of its class."""
        with self._changing() as now:
            name = self._known(now, name)
            known = now.learner.known
            rows = [row for row in self._rows(now, ids) if known.labels[row] != known.number(name)]
            if not rows:
                raise ModelError(f"these pictures are of '{name}' already: choose another class")
            learner = self._learned(now, lambda: known.moved(rows, name))
            counts = dict(now.state.counts)
            counts[name] = counts.get(name, 0) + len(rows)
            line = entry("move", name, len(rows), f"moved {pictures_of(len(rows))} to '{name}'")
            self._commit(now, self._reshown(now, learner, counts, rows, name), [line])

    def remove(self, ids: Iterable[str]) -> None:
        """Forget kept examples; ModelError where one is unknown, or the last of its class."""
        with self._changing() as now:
            rows = self._rows(now, ids)
            known = now.learner.known
            learner = self._learned(now, lambda: known.without_examples(rows))
            of = ", ".join(f"'{known.classes[c]}'" for c in sorted({int(known.labels[row]) for row in rows})[:5])
            line = entry("remove", None, len(rows), f"removed {pictures_of(len(rows))} of {of}")
            self._commit(now, self._reshown(now, learner, dict(now.state.counts), rows), [line])

    def merge(self, other: Model | str | Path) -> list[str]:
        """Learn all that another model with the same backbone knows; a class that both know becomes one.

        Return the names of the classes that are new.
        """
        if not isinstance(other, Model):
            other = Model(other, device="cpu", backbone=self._backbone)
        if other.folder.resolve() == self.folder.resolve():
            raise ModelError("both are the same model: name another to merge")
        theirs = other._fresh()
        more = theirs.state.known
        if more is None:
            raise ModelError("the other model knows no class yet: there is nothing to merge")
        with self._changing() as now:
            self._check_same(now, theirs)
            spelled = {name: _spelled(unicodedata.normalize("NFC", name), now.learner.classes) for name in more.classes}
            for name, mine in spelled.items():
                more = more if name == mine else more.renamed(name, mine)
            known = now.state.known or Knowledge.empty(more.widths)
            learner = self._learned(now, lambda: known.merged(more))
            both, counts, shown = learner.known, dict(now.state.counts), dict(now.state.thumbnails)
            had, brought, have = (dict(zip(k.classes, k.shots.tolist(), strict=True)) for k in (known, more, both))
            for name, mine in spelled.items():
                base = theirs.state.counts.get(name, 0) - brought[mine]
                if mine in counts:
                    # copies of one base class count once
                    again = int(both.counts[both.number(mine)]) == int(known.counts[known.number(mine)])
                    counts[mine] += have[mine] - had[mine] + (0 if again else base)
                else:
                    counts[mine] = have[mine] + base
                old = shown.get(mine, theirs.state.thumbnails[name][:0])
                shown[mine] = _distinct(np.concatenate([old, theirs.state.thumbnails[name]]))[:5]
            new = [mine for mine in spelled.values() if mine not in now.state.counts]
            words = f"merged another model, which brought {', '.join(repr(c) for c in new[:5]) or 'no new class'}"
            words += f" and {len(new) - 5} more" if len(new) > 5 else ""
            line = entry("merge", None, 0, words)
            theirs_too = {name: other.pictures.open(name) for name in other.pictures.names() & set(example_ids(more))}
            self.pictures.keep({i: self.pictures.packed(image) for i, image in theirs_too.items() if image is not None})
            self._commit(now, State(both, counts, shown, learner.fitted), [line])
        return new

    def undo(self) -> str:
        """Undo the last change that was not undone yet; return what it was, in words."""
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

    def _look(self, now: Now, small: Array) -> dict[str, Array]:
        try:
            return now.base.learner.features(small)
        except ValueError as error:
            raise ModelError(f"the network in {self.folder} is damaged: {error}") from None

    def _seen(self, now: Now, name: str, images: Iterable[Image.Image]) -> _Lesson:
        """Return what is learned from pictures, which are looked at one by one."""
        found, pixels, names = [], [], []
        for i, image in enumerate(images):
            names.append(str(getattr(image, "filename", "")))
            pixels.append(squares([image], now.side))
            small = least(image.convert("RGB"), now.side, shown=True)
            found.append((self.pictures.packed(small), _pixels(small), thumbnails([image] if i < 5 else [])))
        if not found:
            raise ModelError(f"there is no picture of '{name}': give at least one; five are a good number")
        files, hashes, shown = map(list, zip(*found, strict=True))
        return _Lesson(self._look(now, np.concatenate(pixels)), files, hashes, np.concatenate(shown), names)

    def _as_kept(self, known: Knowledge | None, lesson: _Lesson) -> _Lesson:
        """Give pictures that the model has given out the features of the examples that they were made of.

        A picture is kept as a JPEG file: seen again, it is almost, but not quite, what the model learned from.
        """
        if known is None or not len(known.labels):
            return lesson
        views = {view: x.copy() for view, x in lesson.views.items()}
        for i, similar in enumerate(similarity(known, views)):
            for row in np.argsort(-similar, kind="stable")[:3]:
                kept = self.pictures.open(example_id(known.views, row))
                if kept is not None and _pixels(kept) == lesson.pixels[i]:
                    for view, x in views.items():
                        x[i] = known.views[view][row]
                    break
        return lesson._replace(views=views)

    def _rows(self, now: Now, ids: Iterable[str]) -> list[int]:
        """Return the numbers of examples; ModelError where there is none, or one is not there."""
        wanted, names = set(ids), example_ids(now.state.known)
        if not wanted or not wanted <= set(names):
            raise ModelError("the model keeps no such picture any more: look again at what it knows")
        return [row for row, name in enumerate(names) if name in wanted]

    def _reshown(
        self, now: Now, learner: FewShotLearner, counts: dict[str, int], rows: list[int], to: str | None = None
    ) -> State:
        """Return the state after examples left their classes: fewer pictures there, and thumbnails of those that stay.

        ``counts`` are those before, except for the class ``to`` that they went to.
        """
        before, known, shown = now.learner.known, learner.known, dict(now.state.thumbnails)
        left = {before.classes[before.labels[row]] for row in rows}
        for row in rows:
            name = before.classes[before.labels[row]]
            counts[name] = max(0, counts.get(name, 0) - 1)
        names = example_ids(known)
        for name in left | ({to} if to is not None else set()):
            c = known.number(name)
            own = [names[row] for row in np.flatnonzero(known.labels == c)]
            images = [image for i in own if i in self.pictures and (image := self.pictures.open(i)) is not None]
            if images and known.counts[c] == 0:
                shown[name] = thumbnails(images)
        return State(known, counts, shown, learner.fitted)

    def _known(self, now: Now, name: str) -> str:
        """Return the name of a class as the model has it; ModelError where it has none."""
        clean = clean_name(name)
        found = _spelled(clean, now.learner.classes)
        if found not in now.learner.classes:
            known = ", ".join(f"'{c}'" for c in now.learner.classes[:20]) or "nothing"
            more = " …" if len(now.learner.classes) > 20 else ""
            raise ModelError(f"the model does not know '{clean}'; it knows: {known}{more}")
        return found

    def _learned(self, now: Now, change: Callable[[], Knowledge], files: Sequence[str] = ()) -> FewShotLearner:
        """Return the learner after a change of what is known; ModelError where that cannot be.

        It names the file of the example that is wrong, where ``files`` has one for its row.
        """
        try:
            return with_knowledge(now.learner, change())
        except ValueError as error:
            row = getattr(error, "what", None)
            file = files[row] if files and isinstance(row, int) else ""
            raise ModelError(f"{file}: {error}" if file else str(error)) from None

    def _check_same(self, now: Now, theirs: Now) -> None:
        """Raise ModelError unless two models see the same way, so that their features compare."""
        mine, other = now.base.learner.backbone, theirs.base.learner.backbone
        assert isinstance(mine, ImageBackbone) and isinstance(other, ImageBackbone)
        assert mine.model is not None and other.model is not None
        if not mine.same(other):
            raise ModelError(
                "the two models have different backbones, so what they learned does not compare: only models that were "
                "made from one and the same trained network can be merged; teach the classes from their photos instead"
            )
        if now.side != theirs.side or mine.model.transform.config() != other.model.transform.config():
            raise ModelError("the two models bring pictures to different sizes or scales: they cannot be merged")

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
                    base = _load_base(self._files, record, self._device, self._backbone)
                return self._put(record, signature, base)
            except ModelError:
                if attempt == 9 or signature == self._files.signature():
                    raise
        raise AssertionError("unreachable")

    def _put(self, record: dict[str, Any], signature: tuple[int, int, int], base: Base) -> Now:
        state = self._files.read_state(record["states"][-1], base.files, record)
        learner = base.learner
        if state.known is not None:
            try:
                if state.known.widths != base.widths:
                    raise ValueError(f"the network has the features {base.widths}, the state {state.known.widths}")
                learner = with_knowledge(base.learner, state.known, state.fuser)
                check_answers(learner)
            except Exception as error:  # there is no end to what a file can hold
                raise ModelError(f"the state in {self.folder} does not fit its base: {error}") from None
        if state.old:
            warn_of_old_version(self.folder, str(record.get("faverage")))
            state = replace(state, fuser=learner.fitted)
        classes = tuple(
            ClassInfo(c, state.counts.get(c, 0), k, tuple(map(png, state.thumbnails.get(c, ()))))
            for k, session in enumerate(learner.sessions)
            for c in session
        )
        return Now(base, record, signature, learner, state, classes)

    @contextmanager
    def _changing(self) -> Iterator[Now]:
        """Give the present state to one writer at a time, in this process and in all others."""
        with self._files.locked():
            if self._files.signature() != self._now.signature:
                with self._loading:
                    self._now = self._read(self._now.base)
            yield self._now

    def _commit(self, now: Now, state: State, entries: list[dict[str, Any]]) -> None:
        """Write a new state, then make it the one that counts."""
        name = f"{now.record['version'] + 1:06d}"
        self._files.write_state(name, state, now.base.files)
        self._write(now, [*now.record["states"], name][-KEPT_STATES - 1 :], [{**e, "state": name} for e in entries])

    def _write(self, now: Now, states: list[str], entries: list[dict[str, Any]]) -> None:
        history = [*(now.record.get("history") or []), *entries][-KEPT_HISTORY:]
        # what cannot be read does not become the one that counts
        known = self._files.read_state(states[-1], now.base.files, now.record).known
        names = [] if known is None else list(known.classes)
        change = {"version": now.record["version"] + 1, "classes": names, "states": states, "history": history}
        self._files.write({**now.record, "base_id": now.base.id, **change})
        with self._loading:
            self._now = self._read(now.base)
        self._forget_pictures()

    def _forget_pictures(self) -> None:
        """Delete the pictures of examples that no state has, so that none can come back by undoing."""
        now, names = self._now, self.pictures.names()
        if not names - set(example_ids(now.state.known)):
            return
        self._named = {name: self._named[name] for name in now.record["states"] if name in self._named}
        for name in now.record["states"]:
            if name not in self._named:
                try:
                    known = self._files.read_state(name, now.base.files, now.record).known
                except ModelError:
                    return  # whatever it had
                self._named[name] = frozenset(example_ids(known))
        self.pictures.remove(names.difference(*self._named.values()))


def _load_base(files: Folder, record: dict[str, Any], device: str, backbone: nn.Module | None) -> Base:
    """Read what a model was made with; ModelError where it is broken, or is not what the record belongs to."""
    given = record.get("given")
    check_given(given, backbone, files.path)
    try:
        found = files.read_base(device, backbone)
        learner = found.parts.learner
        _check_device(device)
        assert isinstance(learner.backbone, ImageBackbone)
        if given is not None:
            learner.backbone.model = as_model(backbone, Evaluate(**given["transform"]))
        extractor = learner.backbone.ready(batch_size=128)
        noise = np.random.default_rng(0).integers(0, 256, (1, record["side"], record["side"], 3), dtype=np.uint8)
        seen = learner.features(noise)
        for view, x in seen.items():
            check_array(f"what the network makes of noise in the view '{view}'", x, 1, None)
        base = Base(files.base_id(), found, learner, extractor, {view: x.shape[1] for view, x in seen.items()})
    except ModelError:
        raise
    except (OSError, ValueError, AttributeError, LookupError, TypeError, RuntimeError, MemoryError) as error:
        raise ModelError(
            f"what the model was made with cannot be read from {files.base} ({error}): restore the folder from a copy"
        ) from None
    if record.get("base_id") not in (None, base.id):
        raise ModelError(f"the files in {files.base} are not those of model.json: restore the folder from a copy")
    return base


def _check_device(device: str) -> None:
    try:
        pick_device(device)
    except ValueError as error:  # that there is no such device is not the folder's fault
        raise ModelError(f"{error} (in a command: --device cpu)") from None


def _spelled(name: str, classes: list[str]) -> str:
    """Return a clean name as the model has it, which may be in decomposed characters."""
    return next((c for c in classes if unicodedata.normalize("NFC", c) == name), name)


def _new_to(known: Knowledge | None, name: str, lesson: _Lesson) -> _Lesson:
    """Return the part of a lesson that is not among the kept examples of its class."""
    if known is None or name not in known.classes:
        return lesson
    own = known.labels == known.number(name)
    kept = set(ids_of({view: x[own] for view, x in known.views.items()}))
    new = [i for i, example in enumerate(ids_of(lesson.views)) if example not in kept]
    return _Lesson(
        {view: x[new] for view, x in lesson.views.items()},
        [lesson.files[i] for i in new],
        [lesson.pixels[i] for i in new],
        lesson.thumbnails[[i for i in new if i < len(lesson.thumbnails)]],
        [lesson.names[i] for i in new],
    )


def _pixels(image: Image.Image) -> bytes:
    """Return a hash of the pixels of an RGB picture."""
    return hashlib.sha256(repr(image.size).encode() + image.tobytes()).digest()


def _distinct(pictures: Array) -> Array:
    """Return thumbnails ``(n, 64, 64, 3)``, each once."""
    seen = {picture.tobytes(): i for i, picture in reversed(list(enumerate(pictures)))}
    return np.asarray(pictures[sorted(seen.values())])


def _told(name: str, count: int, known: bool) -> dict[str, Any]:
    """Return the line of the history for pictures of a new class, or of one that was known."""
    if known:
        return entry("add", name, count, f"added {pictures_of(count)} to '{name}'")
    return entry("teach", name, count, f"taught '{name}' from {pictures_of(count)}")
