"""The documentation: links lead somewhere, every public name is in the reference, tutorials run, the site works."""

import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from joblib import parallel_config
from typer.testing import CliRunner

from faverage import get_mean
from faverage.cli.commands import app
from faverage.registry import _REGISTRIES, outside
from helpers_paths import ROOT
from tools.tutorials import alike, notebook, run

DOCS = ROOT / "docs"
PAGES = sorted(
    [*DOCS.rglob("*.md"), *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG"))]
)
FENCE = re.compile(r"^ *(```+).*?^ *\1\s*$", re.DOTALL | re.MULTILINE)
RUN = [*sorted((DOCS / "tutorials").glob("[!i]*.md")), DOCS / "model-cards.md"]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_anchors_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        name, _, anchor = target.partition("#")
        file = page if not name else page.parent / name
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_commands_exist() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", pages)) <= targets
    scripts = set(re.findall(r"python ((?:examples|benchmarks|tools)/\w+\.py)", pages))
    assert not [script for script in scripts if not (ROOT / script).exists()]


def test_lists_follow_a_blank_line() -> None:
    """GitHub shows others as lists, too; the site shows them as paragraphs."""
    joined = re.compile(r"^(?! *- |  |#|<|\n).+\n- .*$", re.MULTILINE)
    found = {page.name: joined.findall(FENCE.sub("", page.read_text(encoding="utf-8"))) for page in PAGES}
    assert not any(found.values()), found


def public_names() -> Iterator[tuple[str, Any]]:
    """Yield every public name with what it is; those of ``estimators`` are those of ``faverage``."""
    source = ROOT / "src" / "faverage"
    rooms = [path.parent.relative_to(source.parent).as_posix() for path in sorted(source.glob("**/__init__.py"))]
    rooms.append("faverage/features")  # a room of one file
    for room in (importlib.import_module(name.replace("/", ".")) for name in rooms if name != "faverage/estimators"):
        for name in getattr(room, "__all__", ()):
            yield f"{room.__name__}.{name}", getattr(room, name)


def test_every_public_name_is_in_the_reference() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    shown = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    assert sorted(shown) == sorted(name for name, _ in public_names())


def has_example(thing: Any) -> bool:
    """Return whether the docstring of a function or class, or of one of its methods, has an example."""
    parts = [thing, *(vars(thing).values() if inspect.isclass(thing) else ())]
    said = [inspect.getdoc(part) or "" for part in parts if part is thing or inspect.isroutine(part)]
    if said[0].startswith("See the module's docstring."):
        said.append(inspect.getmodule(thing).__doc__ or "")
    return any(">>>" in one for one in said)


def test_every_public_name_has_an_example() -> None:
    things = {name: thing for name, thing in public_names() if inspect.isclass(thing) or inspect.isfunction(thing)}
    assert [name for name, thing in things.items() if not has_example(thing)] == []


@pytest.mark.parametrize("page", RUN[:-1], ids=lambda page: page.stem)
def test_the_notebook_is_the_page(page: Path) -> None:
    said = "run python tools/tutorials.py --notebooks docs/tutorials/[!i]*.md"
    assert page.with_suffix(".ipynb").read_text(encoding="utf-8") == notebook(page), said


def in_shell(words: list[str], env: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Do what ``sh -ec`` does, but commands of faverage in this process, where torch is loaded."""
    said = ""
    for line in words[-1].replace("\\\n", " ").splitlines():
        command, _, file = line.partition(" > ")
        if " -m faverage " not in command:
            said += subprocess.run([*words[:-1], line], env=env, **{**options, "check": True}).stdout
            continue
        done = CliRunner().invoke(app, shlex.split(command)[3:], env=env)
        assert done.exit_code == 0, done.output
        if file:
            Path(file).write_text(done.stdout, encoding="utf-8")
        else:
            said += done.stdout
    return subprocess.CompletedProcess(words, 0, said, "")


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_what_a_page_prints_is_what_it_says(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.tutorials.subprocess", SimpleNamespace(run=in_shell))
    try:
        with parallel_config(backend="sequential"):
            for block, printed in run(page):
                assert alike(printed, block["text"] or "", block["kind"]), f"{block['code']}\n{printed}"
    finally:
        for kind, name, _ in outside():
            _REGISTRIES[kind].unregister(name)


SITE = ROOT / "site"
CHROMIUM = os.environ.get("FAVERAGE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
AXE = os.environ.get("FAVERAGE_AXE")  # axe.min.js of the npm package axe-core
built = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None or not (SITE / "index.html").exists(), reason="no chromium, or no make docs"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    pytest.importorskip("playwright")
    from helpers_browser import chromium

    with chromium(CHROMIUM) as browser:
        yield browser


@pytest.fixture
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of the site, opened from its folder; nothing went wrong on it, and it asked nobody."""
    name, scheme = getattr(request, "param", ("how-it-works", "light"))
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else wrong.append(asked.url))
    page.goto((SITE / f"{name}.html").as_uri())
    page.wait_for_selector("nav.md-code__nav[role], .md-typeset h1")
    yield page
    if folder := os.environ.get("FAVERAGE_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"docs-{name.replace('/', '-')}-{scheme}.png")
    context.close()
    assert not wrong, wrong


class TestSite:
    pytestmark = built

    @pytest.mark.skipif(not AXE, reason="set FAVERAGE_AXE to the file axe.min.js of axe-core")
    @pytest.mark.parametrize(
        "page",
        [
            (name, scheme)
            for name in ("index", "how-it-works", "tutorials/scikit-learn", "reference/fusion")
            for scheme in ("light", "dark")
        ],
        indirect=True,
        ids=lambda page: "-".join(page),
    )
    def test_axe_finds_no_violation(self, page: Any) -> None:
        page.wait_for_timeout(300)
        page.evaluate(Path(AXE).read_text(encoding="utf-8"))
        found = page.evaluate("axe.run().then((said) => said.violations)")
        assert [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in found] == []

    def test_the_figure_computes_the_means_of_the_package_and_obeys_the_keyboard(self, page: Any) -> None:
        options = {"power": {"q": 3.2}}
        page.get_by_label("the same for all classes").uncheck()
        page.get_by_label("dog", exact=True).focus()
        page.keyboard.press("ArrowRight")  # 0.55
        for name in ("arithmetic", "geometric", "harmonic", "power"):
            page.get_by_label(name).check()
            if name == "power":
                page.get_by_label("q", exact=True).focus()
                page.keyboard.press("ArrowRight")
            scores = torch.tensor([[0.6, 0.35, 0.05], [0.1, 0.5, 0.4]], dtype=torch.float64)
            mean = get_mean(name, **options.get(name, {}))
            weights = [0.5, 0.55, 0.5]
            raw = torch.stack([mean.average(scores[:, n], [w, 1 - w]) for n, w in enumerate(weights)])
            shown = [float(x) for x in page.get_attribute("#means-figure", "data-fused").split()]
            assert torch.allclose(torch.tensor(shown, dtype=torch.float64), raw / raw.sum(), atol=1e-9), name
        assert "Answer: cat." in page.inner_text("#m-said")

    def test_search_works_without_a_server(self, page: Any) -> None:
        page.get_by_role("textbox", name="Search").fill("simplex")
        page.wait_for_selector(".md-search-result__item")
        assert "simplex" in page.inner_text(".md-search-result__list").lower()
