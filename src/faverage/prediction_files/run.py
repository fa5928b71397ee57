"""From files to files: read, compare, fit, write. Nothing is written before everything has gone well."""

from __future__ import annotations

import csv
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faverage.afa.explain import Explanation
from faverage.fusion import FUSERS, Fuser, fuser_names
from faverage.prediction_files.base import Listener, UserError, model_names
from faverage.prediction_files.bundle import Bundle, load_bundle, save_bundle
from faverage.prediction_files.compare import Comparison, chosen_fusers, new_fuser, sample
from faverage.prediction_files.compare import compare as compare_fusers
from faverage.prediction_files.join import Joined, check_classes, join, labels_of
from faverage.prediction_files.read import file_suffix, read_labels, read_predictions
from faverage.prediction_files.report import Member, Result, write_report
from faverage.prediction_files.tables import PREDICTION, Predictions
from faverage.storage import replacing

__all__ = ["apply_files", "fuse_files"]

Array = NDArray[Any]
_EXPLAINED = "afa"  # the fuser whose weights are shown where the chosen one has none to show


def fuse_files(
    files: Sequence[str | Path],
    labels: str | Path,
    out: str | Path,
    *,
    fuser: str = "afa",
    folds: int = 5,
    compare: str = "all",
    strict: bool = False,
    allow_missing: bool = False,
    id_column: str | None = None,
    label_column: str | None = None,
    seed: int = 0,
    force: bool = False,
    listener: Listener | None = None,
) -> Result:
    r"""Learn from labelled rows how to fuse the predictions in ``files``, and predict every row.

    Writes ``out`` (id, prediction, a probability for each class), and beside it ``report.html`` and
    ``fuser.safetensors``, which ``apply_files`` takes.

    Args:
        files: one a model: ids, and one column a class; ``.csv``, ``.npz`` or ``.parquet``.
        labels: ids and labels. Rows of ``files`` that are not in it are predicted, but not trained on.
        out: the ``.csv`` file to write.
        fuser: the name of the fuser to fit.
        folds: how many folds the comparison of fusers has.
        compare: the fusers to compare: ``all``, ``none``, or names separated by commas.
        strict: treat warnings as errors.
        allow_missing: count rows that a file lacks as "no answer".
        id_column: the column of ids; by default the first.
        label_column: the column of labels; by default ``label``, or the only one beside the ids.
        seed: of everything random.
        force: overwrite files that exist.
        listener: receives progress and warnings.

    Raises:
        UserError: for anything wrong with the files or the options; nothing is written then.

    >>> import tempfile
    >>> rows = [f"{i},{0.8 - 0.6 * (i % 2):.1f},{0.2 + 0.6 * (i % 2):.1f}" for i in range(20)]
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     for model in ("a.csv", "b.csv"):
    ...         _ = (folder / model).write_text("\n".join(["id,cat,dog", *rows]))
    ...     labels = [f"{i},{['cat', 'dog'][i % 2]}" for i in range(20)]
    ...     _ = (folder / "labels.csv").write_text("\n".join(["id,label", *labels]))
    ...     files = [folder / "a.csv", folder / "b.csv"]
    ...     result = fuse_files(files, folder / "labels.csv", folder / "fused.csv", compare="none")
    ...     out = apply_files(folder / "fuser.safetensors", files, folder / "again.csv")
    ...     (folder / "fused.csv").read_text() == out.read_text()
    True
    >>> result.classes, result.labelled, [path.name for path in result.outputs]
    (['cat', 'dog'], 20, ['fused.csv', 'report.html', 'fuser.safetensors'])
    """
    paths, labels, out = [Path(file) for file in files], Path(labels), Path(out)
    listener = listener or Listener()
    listener.strict = strict
    outputs = [out, out.parent / "report.html", out.parent / "fuser.safetensors"]
    if fuser not in FUSERS:
        raise UserError(f"unknown fuser '{fuser}'; known are {', '.join(fuser_names())}")
    if folds < 2:
        raise UserError(f"--folds must be at least 2, got {folds}")
    compared = chosen_fusers(compare)
    options: dict[str, str | int | bool | None]
    options = {"fuser": fuser, "folds": folds, "seed": seed, "strict": strict, "allow-missing": allow_missing}
    options["compare"] = None if compare == "all" else compare
    options |= {"id": id_column, "label": label_column, "force": True}  # by then the outputs exist
    _check_files(paths, labels)
    _check_outputs(outputs, [*paths, labels], force)

    truth = read_labels(labels, id_column=id_column, label_column=label_column)
    tables = _read(paths, id_column, allow_missing, listener)
    check_classes(tables, truth, listener)
    named = {str(table.path): table.classes for table in tables} | {str(labels): truth.labels}
    _check_headings(tables[0], named, "rename the class, as a column and as a label")
    names = model_names(paths)
    known, rows_of = [list(table.classes) for table in tables], [len(table.ids) for table in tables]
    joined = join(tables, truth, allow_missing=allow_missing, listener=listener)
    rows, y = labels_of(joined, truth)
    if compared and len(y) < folds:
        raise UserError(f"--folds {folds} needs at least {folds} labelled rows with predictions, found {len(y)}")
    if not len(y):
        raise UserError(f"no row of {labels} has an answer of any model")
    if len(set(y.tolist())) < 2:
        raise UserError(f"the labelled rows with predictions are all of the class '{joined.classes[y[0]]}'")

    few = sample(y, int(np.prod(joined.scores.shape[1:])), seed)
    shown = joined.scores[rows[few]]
    comparison = Comparison()
    if compared:
        at = {"folds": folds, "seed": seed, "of": len(y)}
        comparison = compare_fusers(compared, shown, y[few], names, **at, chosen=fuser, listener=listener)
    listener.progress(f"fitting {fuser}", 0, 1)
    fitted = _fit(fuser, joined.scores if len(rows) == len(joined.ids) else joined.scores[rows], y, seed)
    explanation, unexplained = _explain(fitted, shown, y[few], seed, names, joined.classes)
    fused = fitted.predict_proba(joined.scores)
    listener.progress(f"fitting {fuser}", 1, 1)

    result = Result(
        members=[Member(*member) for member in zip(names, paths, rows_of, known, strict=True)],
        labels=labels,
        classes=joined.classes,
        rows=len(joined.ids),
        labelled=len(y),
        fuser=fuser,
        comparison=comparison,
        explanation=explanation,
        unexplained=unexplained,
        warnings=listener.warnings,
        command=_command(paths, labels, out, options),
        outputs=outputs,
    )
    with _writing(outputs) as (predictions, report, file):
        _write_predictions(predictions, joined, fused, listener)
        write_report(report, result)
        save_bundle(Bundle(fitted, joined.classes, names, known), file)
    return result


def apply_files(
    fuser: str | Path,
    files: Sequence[str | Path],
    out: str | Path,
    *,
    by_position: bool = False,
    strict: bool = False,
    allow_missing: bool = False,
    id_column: str | None = None,
    force: bool = False,
    listener: Listener | None = None,
) -> Path:
    """Fuse the predictions in ``files`` with a fuser that ``fuse_files`` wrote; return ``out``.

    Files belong to the models of their names (the file's stem), where words that all of them share do not count:
    ``a_new.csv`` and ``b_new.csv`` are the files of the models a and b. Other names are refused, unless ``by_position``
    says that the files come in the order of the models. The other arguments are those of ``fuse_files``.

    >>> import tempfile
    >>> ids, truth = np.arange(20).astype(str), np.arange(20) % 2
    >>> right, classes = np.eye(2)[truth], ["cat", "dog"]
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     for model, sure in {"forest": 0.9, "svm": 0.6}.items():
    ...         scores = sure * right + (1 - sure) * (1 - right)
    ...         np.savez(folder / f"{model}.npz", ids=ids, classes=classes, scores=scores)
    ...         np.savez(folder / f"{model}_new.npz", ids=["new"], classes=classes, scores=scores[:1])
    ...     np.savez(folder / "labels.npz", ids=ids, labels=np.array(classes)[truth])
    ...     files = [folder / "forest.npz", folder / "svm.npz"]
    ...     _ = fuse_files(files, folder / "labels.npz", folder / "fused.csv", fuser="log-pool", compare="none")
    ...     new = [folder / "svm_new.npz", folder / "forest_new.npz"]  # found by their names, in any order
    ...     out = apply_files(folder / "fuser.safetensors", new, folder / "new.csv")
    ...     [line.split(",")[:2] for line in out.read_text().splitlines()]
    [['id', 'prediction'], ['new', 'cat']]
    """
    paths, fuser, out = [Path(file) for file in files], Path(fuser), Path(out)
    listener = listener or Listener()
    listener.strict = strict
    bundle = load_bundle(fuser)
    _check_files(paths)
    _check_outputs([out], [*paths, fuser], force)
    order = bundle.order(paths, by_position)
    tables = _read(paths, id_column, allow_missing, listener)
    lead, tables = tables[0], [tables[i] for i in order]
    for model, table in enumerate(tables):
        bundle.check(model, table)
    remedy = f"rename the column of ids of {lead.path}, or fit the fuser again with another name for the class"
    _check_headings(lead, {str(fuser): bundle.classes}, remedy)
    joined = join(tables, None, lead=lead, classes=bundle.classes, allow_missing=allow_missing, listener=listener)
    fused = bundle.fuser.predict_proba(joined.scores)
    with _writing([out]) as (predictions,):
        _write_predictions(predictions, joined, fused, listener)
    return out


def _check_files(files: Sequence[Path], labels: Path | None = None) -> None:
    if len(files) < 2:
        raise UserError(f"give at least two files of predictions, got {len(files)}")
    seen: set[Path] = set()
    for file in files:
        if not str(file).isprintable():
            raise UserError(f"the name of the file {str(file)!a} cannot be printed: rename it")
        if file.resolve() in seen:
            raise UserError(f"{file} is given twice")
        seen.add(file.resolve())
    for file in [*files, labels] if labels is not None else files:
        file_suffix(file)


def _check_outputs(outputs: Sequence[Path], inputs: Sequence[Path], force: bool) -> None:
    """Refuse outputs that cannot be written, that would replace an input or, without ``force``, any file."""
    out = outputs[0]
    if out.suffix.lower() != ".csv":
        raise UserError(f"--out {out} must end in .csv, not in '{out.suffix}'")
    if not out.parent.is_dir():
        raise UserError(f"cannot write {out}: the folder {out.parent} does not exist")
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"cannot write {out}: the folder {out.parent} is read-only")
    taken = {file.resolve() for file in inputs}
    for file in outputs:
        if file.is_dir():
            raise UserError(f"cannot write {file}: it is a folder")
        if file.resolve() in taken:
            raise UserError(f"{file} is an input and would be overwritten: choose another --out")
        if file.exists() and not force:
            if file != out:
                raise UserError(
                    f"{file}, which is written beside --out, exists already: "
                    "give --force, or an --out in another folder"
                )
            raise UserError(f"{file} exists already: give --force to overwrite it, or choose another --out")


def _check_headings(lead: Predictions, named: Mapping[str, Collection[str]], remedy: str) -> None:
    """Refuse classes that would give the output two columns of one name.

    Args:
        lead: the table whose ids come first.
        named: the classes that each file names.
        remedy: what to do about such a class.
    """
    ids = lead.id_name or "id"
    if ids == PREDICTION:
        raise UserError(f"{lead.path}: the output has a column '{ids}' of its own: rename the column of ids")
    for file, classes in named.items():
        for name in (ids, PREDICTION):
            if name in classes:
                raise UserError(
                    f"{file}: the class '{name}' has the name of another column of the output, "
                    f"which are '{ids}', '{PREDICTION}' and the classes: {remedy}"
                )


def _read(files: Sequence[Path], id_column: str | None, allow_missing: bool, listener: Listener) -> list[Predictions]:
    tables = []
    for i, file in enumerate(files):
        listener.progress("reading", i, len(files))
        tables.append(read_predictions(file, id_column=id_column, allow_missing=allow_missing, listener=listener))
    listener.progress("reading", len(files), len(files))
    return tables


def _fit(name: str, scores: Array, y: Array, seed: int) -> Fuser:
    try:
        return new_fuser(name, seed).fit(scores, y)
    except ValueError as error:
        raise UserError(f"the fuser '{name}' cannot be fitted on these files: {error}") from None


def _explain(
    fitted: Fuser, scores: Array, y: Array, seed: int, models: list[str], classes: list[str]
) -> tuple[Explanation | None, str]:
    """Return what the fitted fuser's weights say, or those of AFA fitted on the rows compared; or why not."""
    try:
        if not hasattr(fitted, "explain"):
            fitted = new_fuser(_EXPLAINED, seed).fit(scores, y)
        explanation: Explanation = fitted.explain(models=models, classes=classes)  # type: ignore[attr-defined]
    except Exception as error:
        return None, str(error) or type(error).__name__
    return explanation, ""


def _command(files: list[Path], labels: Path, out: Path, options: dict[str, str | int | bool | None]) -> str:
    """Return the command line that does the same again."""
    given = [f"./{file}" if str(file).startswith("-") else str(file) for file in files]
    words = ["faverage", "fuse", "--labels", str(labels), *given, "--out", str(out)]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", str(value)]
    return shlex.join(words)


@contextmanager
def _writing(outputs: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield temporary paths for the outputs; they take their places together, once all are written."""
    try:
        with ExitStack() as stack:
            yield [stack.enter_context(replacing(file)) for file in outputs]
    except OSError as error:
        raise UserError(f"cannot write {outputs[0]}: {error.strerror or error}") from None


def _write_predictions(path: Path, joined: Joined, fused: Array, listener: Listener) -> None:
    """Write id, predicted label and probabilities ``(n, N)`` as CSV, whose rows sum to one as they are read again."""
    fused = fused / fused.sum(1, keepdims=True, dtype=np.float64)  # float64: a sum is then off by the digits alone
    best = fused.argmax(1).tolist()
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([joined.id_name or "id", PREDICTION, *joined.classes])
        for i, (name, label) in enumerate(zip(joined.ids, best, strict=True)):
            writer.writerow([name, joined.classes[label], *(f"{p:.10g}" for p in fused[i].tolist())])
            if i % 5000 == 0 or i + 1 == len(best):
                listener.progress("_writing", i + 1, len(best))
