"""The package itself: imports go one way and are cheap, public names exist and are documented."""

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import faverage
from faverage.errors import install_line
from helpers_paths import ROOT

SOURCE = Path(faverage.__file__).parent

# a room imports from rooms before it, never from one after it, inside functions neither
ROOMS = (
    *("deprecation", "errors", "registry", "code", "threads", "report", "progress", "storage"),
    *("afa", "fusion", "estimators", "prediction_files", "forecasts"),
    *("data", "vision", "fscil", "features", "rivals", "experiment"),
    *("app", "cli", "__main__"),
)
APART = {("estimators", "prediction_files"), ("rivals", "fscil"), ("data", "fusion"), ("vision", "fusion")}
"""Rooms that know nothing of each other, although they could."""

ARRAY = re.compile(r"\b(Tensor|NDArray|ArrayLike|ndarray|Array|Indices|Parts)\b")
SHAPE = re.compile(r"``[^`]*\(([^`]*,[^`]*)?\)``|any shape")
NO_SHAPES_YET = ("experiment", "app")
"""What is being rewritten, and says the shapes of its arrays when that is done."""


def imports_of(path: Path) -> set[str]:
    """Return the rooms that a file imports from, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "faverage":
            found |= {alias.name for alias in node.names} - {"__version__", *faverage.__all__}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("faverage."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("faverage.")}
    return found


def test_imports_go_one_way() -> None:
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        assert room in ROOMS, f"{room} has no place in the order of rooms"
        extra = imports_of(path) - set(ROOMS[: ROOMS.index(room) + 1])
        extra |= {other for other in imports_of(path) if {(room, other), (other, room)} & APART}
        assert not extra, f"{path} must not import {extra}"


def test_private_files_stay_in_their_room() -> None:
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            parts = (node.module or "").split(".") if isinstance(node, ast.ImportFrom) else []
            if len(parts) > 2 and parts[0] == "faverage" and parts[2].startswith("_"):
                assert parts[1] == room, f"{path} must not import {node.module}"


def array_docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each public function, method and class with array arguments, results or fields, and its docstring."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    for owner in (tree, *classes):
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and owner is not tree:
                name, kinds, said = ast.unparse(node.target), ast.unparse(node.annotation), owner
            elif isinstance(node, ast.FunctionDef):
                name, kinds = node.name, f"{ast.unparse(node.args)} {node.returns and ast.unparse(node.returns)}"
                said = owner if name == "__init__" else node
            else:
                continue
            if ARRAY.search(kinds) and (not name.startswith("_") or name in ("__init__", "__call__")):
                yield f"{getattr(owner, 'name', '')}.{name}".lstrip("."), ast.get_docstring(said) or ""


def test_array_arguments_have_shapes() -> None:
    files = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("[!_]*.py")}
    missing = [
        f"{place}: {name}"
        for place, path in files.items()
        if not place.startswith(NO_SHAPES_YET)
        for name, said in array_docstrings(ast.parse(path.read_text()))
        if not SHAPE.search(said)
    ]
    assert not missing, f"docstrings must say the shape of arrays, such as ``(n, K, N)``: {missing}"


def test_make_help_lists_the_commands() -> None:
    text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20).stdout
    assert {"run", "test", "bench", "bench-fusion"} <= {line.split()[0] for line in text.splitlines()}


def test_public_names_exist_and_are_documented() -> None:
    for name in faverage.__all__:
        assert getattr(faverage, name).__doc__, name


@pytest.mark.slow
def test_import_loads_nothing_heavy_and_takes_less_than_half_of_torch() -> None:
    heavy = {"matplotlib", "pandas", "onnx", "onnxruntime", "fastapi", "uvicorn", "sklearn", "rich", "PIL", "yaml"}
    code = (
        "import sys, time; start = time.perf_counter(); import torch; middle = time.perf_counter();"
        "before = set(sys.modules); from faverage import AFA, align, explain, fit; end = time.perf_counter();"
        "print((end - middle) / (middle - start), *(set(sys.modules) - before))"
    )
    share = 1.0
    for _ in range(3):  # others may delay some
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        first, *loaded = said.split()
        share = float(first)
        assert not heavy & {name.split(".")[0] for name in loaded}
        if share < 0.5:
            break
    assert share < 0.5


def test_the_lowest_versions_are_declared_and_can_be_listed() -> None:
    said = subprocess.run([sys.executable, ROOT / "tools/floors.py"], capture_output=True, text=True, check=True).stdout
    lowest = dict(line.split("==") for line in said.splitlines())
    imported = {"torch", "numpy", "scipy", "scikit-learn", "joblib", "threadpoolctl", "safetensors", "typer", "rich"}
    assert imported | {"pillow", "pyyaml", "fastapi", "starlette", "pydantic", "uvicorn"} <= lowest.keys()
    assert lowest["torch"] == (ROOT / "constraints.txt").read_text().split("==")[1].strip()


def test_old_names_of_modules_warn_and_are_the_new_modules() -> None:
    from faverage.deprecation import MOVED

    for old, new in MOVED.items():
        with pytest.warns(DeprecationWarning, match=f"is now faverage.{new};"):
            module = importlib.import_module(f"faverage.{old}")
        assert module is importlib.import_module(f"faverage.{new}") and module.__spec__.name == f"faverage.{new}"
    assert callable(faverage.fit) and callable(faverage.explain) and callable(faverage.align)


def test_the_version_is_told_without_torch() -> None:
    code = (
        "import sys; sys.argv = ['faverage', '--version']; from faverage.cli import main; main(); print(*sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"faverage {faverage.__version__}\n") and not {"torch", "numpy"} & set(said.split())
    again = subprocess.run([sys.executable, "-m", "faverage", "--version"], capture_output=True, text=True, check=True)
    assert again.stdout == f"faverage {faverage.__version__}\n"
    assert set(faverage.__all__) <= set(dir(faverage)) <= {*faverage.__all__, "__version__"}


# A release ------------------------------------------------------------------------------------------------------------


def test_one_version_and_a_dated_entry_of_it_in_the_changelog() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"] and "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "faverage.__version__"}
    assert f"\nversion: {faverage.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    headings = re.findall(r"^## \[(.*?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == ("Unreleased", "") and headings[1][0] == faverage.__version__
    assert all(date for _, date in headings[1:])


def test_the_workflow_runs_what_make_runs() -> None:
    import yaml

    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]
    matrix = jobs["test"]["strategy"]["matrix"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    said = [line.rsplit(" ", 1)[1] for line in classifiers if re.search(r":: 3\.\d+$", line)]
    assert matrix["python"] == said and len(matrix["os"]) == 3
    makefile = (ROOT / "Makefile").read_text()
    [line] = re.findall(r"^quick:.*\n\t@\$\(PYTEST\) \$\(BIN\)/python (.*)", makefile, re.MULTILINE)
    for name in ("SHARED", "JOBS"):
        [value] = re.findall(rf"^{name}\s*[:?]= *(.*)", makefile, re.MULTILINE)
        line = line.replace(f"$({name})", value)
    assert f"python {line}" in [step.get("run") for step in jobs["test"]["steps"]]


def test_doctor_says_what_is_missing_and_what_to_type(monkeypatch, capsys) -> None:
    from faverage.cli import doctor, main

    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(doctor.FEATURES) == optional.keys() - {"dev", "browser", "docs"}
    versions = {"fastapi": None, "torch": "2.5.1+cu121"}
    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name, "9999.0"))
    monkeypatch.setattr(sys, "argv", ["faverage", "doctor", "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    found = json.loads(capsys.readouterr().out)
    assert found["missing"] == ["torch>=2.6 (there is 2.5.1+cu121)"] and found["packages"]["fastapi"] is None
    missing = {one["extra"]: one for one in found["features"] if one["missing"]}
    assert missing == {"app": {**missing["app"], "missing": ["fastapi"], "install": install_line("app")}}
    assert f"'serve' (extra 'app'): lacks fastapi\n       {install_line('app')}" in doctor.in_words(found)


def test_the_shell_is_told_how_to_complete(monkeypatch, capsys) -> None:
    from faverage.cli.commands import app

    for name, value in (("COMP_WORDS", "faverage teach --back"), ("COMP_CWORD", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_FAVERAGE_COMPLETE", "complete_bash")
    with pytest.raises(SystemExit):
        app(prog_name="faverage")
    assert capsys.readouterr().out.strip() == "--backbone"
