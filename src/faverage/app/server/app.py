"""The server of one model or of several: their API, and the page that uses it.

``create_app`` returns a plain ASGI application; the command ``faverage serve`` runs it.
"""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from faverage import __version__
from faverage.app.model import Model
from faverage.app.names import printable
from faverage.app.server import schemas
from faverage.app.server.files import add_files
from faverage.app.server.guard import HEADERS, Guard, Refused
from faverage.app.server.limits import LOOPBACK, Limits, Meter
from faverage.app.server.routes import add_changes, add_examples, add_predict, add_reading
from faverage.app.server.workers import Threads, Workers
from faverage.report.page import STYLE, page, text

STATIC = Path(__file__).parent.parent / "static"


def create_app(
    model: Model,
    *others: Model,
    token: str | None = None,
    limits: Limits | None = None,
    hosts: Collection[str] | None = LOOPBACK,
    note: str | None = None,
) -> FastAPI:
    """Return the server of a model, or of several.

    One model has its routes at ``/``. Of several, each has them below ``/m/NAME``, and the first at ``/`` as well; they
    share threads and limits.

    Args:
        model: what to serve; nothing else may be done to it meanwhile but through its own methods.
        others: to serve beside it.
        token: what clients have to show, as ``Authorization: Bearer`` or by opening ``/?token=…`` once.
        limits: of a client.
        hosts: names under which the server may be addressed, beside those of this machine; None allows any.
        note: what the page says of the models.
    """
    limits = limits or Limits()
    meter, threads = Meter(), Threads(limits)
    names = names_of([one.folder for one in (model, *others)])
    under = [f"/m/{part}" for part in _parts(names)] if others else [""]
    served = [schemas.Served(name=name, address=f"{at}/") for name, at in zip(names, under, strict=True)]

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        await threads.close()

    app = FastAPI(
        title="faverage", version=__version__, docs_url=None, redoc_url=None, openapi_url="/openapi.json", lifespan=life
    )
    app.description = "Predict, teach new classes from a few pictures, forget, undo, explain."
    if others:
        app.description += (
            f" Each model has its own address: {', '.join(under)}; what has none of them is of the first."
        )
    app.add_middleware(Guard, token=token, limits=limits, hosts=hosts, meter=meter, under=under if others else ())
    _say_errors_in_words(app)
    for one, at in zip((model, *others), under, strict=True):
        workers = Workers(one, limits, meter, threads)
        router = APIRouter()
        add_predict(router, at, workers, limits)
        add_reading(router, one, at, workers, meter, schemas.Models(models=served, note=note))
        add_changes(router, one, workers, limits)
        add_examples(router, one, at, workers)
        add_files(router, one, workers, limits)
        if at:
            app.include_router(router, prefix=at, include_in_schema=False)
        if one is model:
            app.include_router(router)
    _add_page(app, under)
    return app


def names_of(folders: Sequence[Path]) -> list[str]:
    """Return what models are called: their folders, with as many of those above as tell them apart.

    >>> names_of([Path("/a/birds"), Path("/b/birds"), Path("/b/cars")])
    ['a/birds', 'b/birds', 'cars']
    """
    whole = [folder.resolve().parts for folder in folders]
    depths = [1] * len(folders)
    while True:
        names = [printable("/".join(parts[-depth:])) for parts, depth in zip(whole, depths, strict=True)]
        again = [Counter(names)[name] > 1 and d < len(p) for name, d, p in zip(names, depths, whole, strict=True)]
        if not any(again):
            return names
        depths = [depth + more for depth, more in zip(depths, again, strict=True)]


def _parts(names: Sequence[str]) -> list[str]:
    """Return a part of an address for each name, no two the same.

    >>> _parts(["my birds", "my-birds", "犬"])
    ['my-birds', 'my-birds-2', 'model']
    """
    found: list[str] = []
    for name in names:
        plain = re.sub("[^A-Za-z0-9_]+", "-", name).strip("-") or "model"
        free = (part for k in range(1, len(names) + 1) if (part := plain if k == 1 else f"{plain}-{k}") not in found)
        found.append(next(free))
    return found


def _add_page(app: FastAPI, under: Collection[str]) -> None:
    def static(path: str, name: str, kind: str) -> None:
        async def serve() -> FileResponse:
            return FileResponse(STATIC / name, media_type=kind, headers={"cache-control": "no-cache"})

        app.add_api_route(path, serve, include_in_schema=False)

    for at in {"", *under}:
        static(f"{at}/", "index.html", "text/html")
    static("/page.css", "page.css", "text/css")
    static("/page.js", "page.js", "text/javascript")
    for module in sorted((STATIC / "js").glob("*.js")):
        static(f"/js/{module.name}", f"js/{module.name}", "text/javascript")
    static("/icon.svg", "icon.svg", "image/svg+xml")
    static("/favicon.ico", "icon.svg", "image/svg+xml")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        policy = HEADERS["content-security-policy"].replace("style-src 'self'", f"style-src '{_style_hash()}'")
        return HTMLResponse(_describe(app.openapi()), headers={"content-security-policy": policy})


def _say_errors_in_words(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        words = {404: "There is nothing at this address.", 405: "This address does not take this kind of request."}
        said = error.detail if isinstance(error, Refused) else words.get(error.status_code, str(error.detail))
        return JSONResponse({"error": said}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()[0]
        where = ".".join(str(part) for part in found["loc"] if part != "body") or "the request"
        return JSONResponse({"error": f"{where}: {found['msg'].lower()}"}, 422)


_MORE = """
.call { display: flex; flex-wrap: wrap; gap: .6rem; align-items: baseline; font: 600 1.05rem ui-monospace, monospace;
  overflow-wrap: anywhere; }
.call b { font-size: .8rem; background: var(--mark); border-radius: .3rem; padding: .1rem .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; font-size: .92rem; margin: .4rem 0 .8rem; }
dt { font-family: ui-monospace, monospace; } dd { margin: 0; color: var(--soft); }
"""

Json = dict[str, Any]


@lru_cache(1)
def _style_hash() -> str:
    """Return the hash of the page's style sheet, as a Content-Security-Policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256((STYLE + _MORE).encode()).digest()).decode()


def _describe(api: Json) -> str:
    """Return the page of an OpenAPI description."""
    parts = [
        f"<h1>The API of {text(api['info']['title'])} {text(api['info']['version'])}</h1>",
        f"<p>{text(api['info'].get('description', ''))} The same for programs: "
        '<a href="/openapi.json">openapi.json</a>. <a href="/">Back to the page</a>.</p>',
        '<p class="soft">Every error is JSON, {"error": "words"}, with a fitting status. A server that was started '
        "with a token wants the header <code>Authorization: Bearer TOKEN</code>.</p>",
    ]
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            parts += _operation(path, method.upper(), operation, api)
    return page("faverage: the API", parts, _MORE)


def _operation(path: str, method: str, operation: Json, api: Json) -> list[str]:
    parts = [
        f"<h2>{text(operation.get('summary', path))}</h2>",
        f'<p class="call"><b>{method}</b> {text(path)}</p>',
        "".join(f"<p>{text(p)}</p>" for p in operation.get("description", "").replace("`", "").split("\n\n") if p),
        f"<pre>{text(_curl(path, method, operation))}</pre>",
    ]
    errors = dict(operation["responses"])
    kinds = errors.pop("200", {}).get("content", {}).values()
    schema = next((kind["schema"] for kind in kinds if kind.get("schema")), None)
    if schema is not None:
        example = json.dumps(_example(schema, api), indent=1, ensure_ascii=False)
        parts.append(f"<h3>Answer</h3><pre>{text(example)}</pre>")
    if errors:
        rows = "".join(f"<dt>{text(s)}</dt><dd>{text(a['description'])}</dd>" for s, a in errors.items())
        parts.append(f"<h3>Errors</h3><dl>{rows}</dl>")
    return parts


def _curl(path: str, method: str, operation: Json) -> str:
    address = "http://localhost:8000" + path.replace("{id}", "0a1b2c3d4e5f6071").replace("{k}", "0")
    if method == "GET":
        return f"curl {address}"
    kinds = operation.get("requestBody", {}).get("content", {})
    if "multipart/form-data" in kinds:
        named = "name" in kinds["multipart/form-data"]["schema"]["properties"]
        return f"curl {address}" + (" -F name=star" if named else "") + " -F images=@one.png -F images=@two.jpg"
    if "application/zip" in kinds:
        return f"curl {address} -H 'Content-Type: application/zip' --data-binary @one.zip"
    if kinds:
        return f"curl {address} -H 'Content-Type: application/json' -d '{{\"name\": \"star\"}}'"
    return f"curl -X POST {address}"


def _example(schema: Json, api: Json) -> Any:
    """Return an example of a schema: its own, or one made of its parts."""
    if "$ref" in schema:
        schema = api["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "examples" in schema:
        return schema["examples"][0]
    if "anyOf" in schema:
        return _example(schema["anyOf"][0], api)
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return {name: _example(part, api) for name, part in schema["properties"].items()}
    if kind == "object":
        return {"…": _example(schema.get("additionalProperties") or {}, api)}
    if kind == "array":
        return [_example(schema.get("items") or {}, api)]
    return {"integer": 1, "number": 0.5, "boolean": True, "string": "…"}.get(str(kind), "…")
