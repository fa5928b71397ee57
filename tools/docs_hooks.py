"""What MkDocs is told beyond mkdocs.yml: files outside docs/ as pages, and examples in docstrings as code.

Pages link to files of the repository, as GitHub shows them. Here each such file becomes a page below ``repository/``:
Markdown as it is, a notebook with its outputs, source as code. So the site needs nothing but itself.
"""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
ALWAYS = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/teach_photos.ipynb")  # in the navigation
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
NAMED = re.compile(r"\[((?:[\w-]+)\.md)\]\((?=\1)")
OUTSIDE = re.compile(r"""<(?:script|img|iframe|source|link)\b[^>]*(?:src|href)=["']?(?:https?:)?//[^>]*>""")
FENCE = re.compile(r"^(```+).*?^\1\s*$", re.DOTALL | re.MULTILINE)


def page_of(path: Path) -> str:
    """Return the place on the site of a file of the repository."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = f"repository/{path.relative_to(ROOT).as_posix()}"
    return name if path.suffix == ".md" else f"{name}.md"


def file_of(page: str) -> Path:
    """Return the file of the repository that a page shows."""
    if not page.startswith("repository/"):
        return DOCS / page
    path = ROOT / page.removeprefix("repository/")
    return path if path.is_file() else path.with_suffix("")


def linked(markdown: str, origin: Path) -> set[Path]:
    """Return the files outside docs/ that a page of the file ``origin`` links to."""
    found = {(origin.parent / target).resolve() for target in LINK.findall(FENCE.sub("", markdown))}
    return {path for path in found if path.is_file() and path.is_relative_to(ROOT) and not path.is_relative_to(DOCS)}


def notebook(path: Path) -> str:
    """Return a notebook as Markdown: text, code, and what the code printed or drew."""
    said = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        said.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            if output["output_type"] == "stream":
                said.append(f"```text\n{''.join(output['text'])}```")
            elif picture := output.get("data", {}).get("image/png"):
                data = "".join(picture).replace("\n", "")
                said.append(f"![What the cell above shows](data:image/png;base64,{data})")
    name = path.relative_to(ROOT).as_posix()
    return "\n\n".join([*said, f"*This page is the notebook `{name}`, as it ran.*"])


def content(path: Path) -> str:
    """Return the Markdown of a page that shows a file outside docs/."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return notebook(path)
    name, language = path.relative_to(ROOT).as_posix(), {".py": "python"}.get(path.suffix, "text")
    code = path.read_text(encoding="utf-8").rstrip("\n")
    return f"---\nsearch:\n  exclude: true\n---\n# {name}\n\n`````{language}\n{code}\n`````\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every file outside docs/ that the navigation has or a page links to."""
    always = {ROOT / name for name in ALWAYS}
    wanted = set(always)
    for file in files.documentation_pages():
        wanted |= linked(file.content_string, DOCS / file.src_uri)
    done: set[Path] = set()
    while wanted - done:
        path = min(wanted - done)
        done.add(path)
        text = content(path)
        shown = InclusionLevel.INCLUDED if path in always else InclusionLevel.NOT_IN_NAV  # source has links alone
        files.append(File.generated(config, page_of(path), content=text, inclusion=shown))
        if path.suffix == ".md":
            wanted |= linked(text, path)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to pages of the site, wherever on GitHub they lead, under titles instead of names of files."""
    here = page.file.src_uri
    origin = file_of(here)
    if here == "index.md":
        page.meta["hide"] = ["navigation", "toc"]  # not in the file, where GitHub would show it

    def moved(match: re.Match[str]) -> str:
        path = (origin.parent / match[0]).resolve()
        if not path.is_file() or not path.is_relative_to(ROOT):
            return match[0]
        return os.path.relpath(page_of(path), Path(here).parent)

    def titled(match: re.Match[str]) -> str:
        heading = (origin.parent / match[1]).read_text(encoding="utf-8").partition("\n")[0]
        return f"[{heading.removeprefix('# ')}]("

    def changed(text: str) -> str:
        return LINK.sub(moved, NAMED.sub(titled, text))

    parts, last = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [changed(markdown[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, changed(markdown[last:])])


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Put drawings into the page itself, where they take its colours."""

    def drawn(match: re.Match[str]) -> str:
        text = (file_of(page.file.src_uri).parent / match[1]).read_text(encoding="utf-8")
        return text if 'class="drawing"' in text else match[0]

    return re.sub(r'<img [^>]*src="([\w./-]+\.svg)"[^>]*>', drawn, html)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Name the dialog of the search, which Material leaves nameless; refuse a page that would fetch from elsewhere."""
    if fetched := OUTSIDE.search(output):
        raise PluginError(f"{page.file.src_uri} would fetch from elsewhere: {fetched[0]}")
    nameless = 'data-md-component="search" role="dialog"'
    return output.replace(nameless, f'{nameless} aria-label="Search"')


class Examples(griffe.Extension):
    """Docstrings as Markdown: examples (``>>>``) as blocks of Python; that of a module where a class refers to it."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring; that of its module comes first."""
        if obj.docstring is None:
            return
        own = fenced(obj.docstring.value)
        whole = obj.module.docstring if own.startswith("See the module's docstring.") else None
        obj.docstring.value = own if whole is None else whole.value + own.partition("docstring.")[2]

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """List the settings of a run, ``name: type = setting(default, help, …)``, as attributes with plain defaults."""
        said = []
        for name, one in cls.attributes.items():
            if isinstance(one.value, griffe.ExprCall) and one.value.canonical_path.endswith("settings.setting"):
                one.value, words = one.value.arguments[:2]
                said.append(f"    {name}: {ast.literal_eval(str(words))}.")
        if said and cls.docstring is not None:
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(said)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Let a public name that a module of the room has, too, such as ``vision.together``, be what Python imports."""
        for room in pkg.modules.values():
            for name, module in list(room.modules.items()):
                if name in (room.exports or ()) and name in module.members:
                    room.members[name] = griffe.Alias(name, module.members[name], parent=room)


def fenced(docstring: str) -> str:
    """Put fences around examples, up to the blank line after them; what only doctest reads is left out."""
    said, inside = [], ""
    for line in docstring.splitlines():
        if not inside and (match := re.match(r"( *)>>> ", line)):
            inside = f"{match[1]}```"
            said.append(f"{inside}python")
        elif inside and not line.strip():
            said.append(inside)
            inside = ""
        said.append(re.sub(r" +# doctest: .*", "", line))
    return "\n".join([*said, inside] if inside else said)
