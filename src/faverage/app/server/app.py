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
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from faverage import __version__
from faverage.app.model import Model
from faverage.app.names import BusyError, ModelError, clean_name, printable
from faverage.app.server import schemas
from faverage.app.server.examples import add_examples
from faverage.app.server.files import add_files
from faverage.app.server.guard import HEADERS, Guard, Refused
from faverage.app.server.limits import LOOPBACK, Limits, Meter, who
from faverage.app.server.schemas import class_id, classes_answer, learned_answer, prediction_answer
from faverage.app.server.uploads import read_form, read_predict
from faverage.app.server.workers import Threads, Workers
from faverage.report.page import STYLE, page, text

__all__ = ["create_app"]

STATIC = Path(__file__).parent.parent / "static"
_PICTURES = {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "1 to 20 pictures."}
_PREDICT = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {"type": "object", "properties": {"images": _PICTURES}, "required": ["images"]}
        },
        "image/*": {"schema": {"type": "string", "format": "binary"}},
    },
}
_TEACH = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {"name": {"type": "string", "examples": ["star"]}, "images": _PICTURES},
                "required": ["name", "images"],
            }
        }
    },
}
_WORDS = {
    400: "The form could not be read.",
    401: "This server wants its token.",
    404: "There is no such class, or no such picture.",
    409: "The model refuses this, and says why.",
    413: "The request is too large: too many pictures, too many bytes, or too many pixels.",
    415: "This is no form.",
    422: "A picture is no picture, or a name is no name.",
    429: "Too many requests of one client, or too much of it at once.",
    503: "The server is busy, or another process holds the model.",
}


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {s: {"model": schemas.Failure, "description": _WORDS[s]} for s in sorted({*statuses, 401, 429, 503})}


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
        _add_predict(router, at, workers, limits)
        _add_reading(router, one, at, workers, meter, schemas.Models(models=served, note=note))
        _add_changes(router, one, workers, limits)
        add_examples(router, one, at, workers, _errors, _changed, _cleaned)
        add_files(router, one, workers, limits, _errors, _changed, _client)
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


def _add_predict(router: APIRouter, at: str, workers: Workers, limits: Limits) -> None:
    @router.post(
        "/api/predict",
        response_model=schemas.Predictions,
        responses=_errors(400, 409, 413, 422),
        openapi_extra={"requestBody": _PREDICT},
        summary="Say what is on pictures, and why",
    )
    async def predict(
        request: Request,
        unknown: Annotated[
            float | None, Query(gt=0, lt=1, description="Rate of wrong 'none of these', as 0.05.")
        ] = None,
    ) -> Response:
        """Send a form with up to 20 pictures in fields called `images`, or one picture as the body.

        With `?unknown=0.05`, the answer says whether a picture is none of the classes; it says so of at most that
        share of the pictures of known classes.
        """
        uploads = await read_predict(request, limits)
        client = _client(request)
        with workers.room(client, len(uploads)):
            images = await workers.open(client, uploads)
            try:
                answers = await workers.predict(images)
            except ModelError as error:
                raise Refused(409, str(error)) from None
        # the answer is put together by hand: checking it against its own model costs more than predicting
        return JSONResponse({"answers": [prediction_answer(answer, unknown, at) for answer in answers]})


def _add_reading(
    router: APIRouter, model: Model, at: str, workers: Workers, meter: Meter, served: schemas.Models
) -> None:
    @router.get("/api/models", responses=_errors(), summary="Which models are served")
    async def models() -> schemas.Models:
        """Each with its name and its address."""
        return served

    @router.get("/api/classes", responses=_errors(), summary="What the model knows")
    async def classes() -> schemas.Classes:
        """Every class with its number of pictures and its thumbnails, and the last change."""
        return await workers.read(classes_answer, model, at)

    @router.get(
        "/api/classes/{id}/thumbnails/{k}.png",
        response_class=Response,
        responses={200: {"content": {"image/png": {}}}, **_errors(404)},
        summary="A small picture of a class",
    )
    async def thumbnail(id: str, k: int) -> Response:
        """The addresses are in the answer of `/api/classes`."""
        for known in await workers.read(model.classes):
            if class_id(known.name) == id and 0 <= k < len(known.thumbnails):
                headers = {"cache-control": "private, max-age=31536000, immutable"}
                return Response(known.thumbnails[k], media_type="image/png", headers=headers)
        raise Refused(404, "There is no such picture.")

    @router.get("/api/explain", responses=_errors(409), summary="How the model decides")
    async def explain() -> schemas.Explained:
        """The share of each mean, of each member for each class, and the most trusted member of each class."""
        try:
            said = await workers.read(model.explain)
        except ModelError as error:
            raise Refused(409, str(error)) from None
        return schemas.Explained(
            means=[schemas.MeanShare(mean=str(m), share=s) for m, s in said.means.rows],
            heads=[schemas.HeadShare(name=str(c), head=str(h), share=s) for c, h, s in said.models.rows],
            trusted=[
                schemas.Trusted(name=str(c), head=str(h), share=s, mean=str(m)) for c, h, s, m in said.trusted.rows
            ],
        )

    @router.get("/api/health", summary="A sign of life")
    async def health() -> schemas.Health:
        """Answers without a token."""
        version, known = await workers.known()
        return schemas.Health(status="ok", faverage=__version__, version=version, classes=known)

    @router.get("/api/metrics", responses=_errors(), summary="Counts and times")
    async def metrics() -> schemas.Metrics:
        """Requests by address, with median and 99th percentile of their times."""
        requests = {path: schemas.Timing.model_validate(found) for path, found in meter.summary().items()}
        return schemas.Metrics(
            faverage=__version__,
            version=(await workers.known())[0],
            seconds=round(meter.seconds, 1),
            batches=meter.batches,
            pictures=meter.pictures,
            requests=requests,
        )


def _add_changes(router: APIRouter, model: Model, workers: Workers, limits: Limits) -> None:
    @router.post(
        "/api/teach",
        responses=_errors(400, 409, 413, 415, 422),
        openapi_extra={"requestBody": _TEACH},
        summary="Teach a class from a few pictures",
    )
    async def teach(request: Request) -> schemas.Learned:
        """One picture is enough, five are better. A class that is known gets more pictures.

        Those who predict meanwhile are answered by the model as it was before. Two who teach take turns.
        """
        given, uploads = await read_form(request, limits)
        name = _cleaned(given)
        client = _client(request)
        with workers.room(client, len(uploads)):
            images = await workers.open(client, uploads, shown=len(uploads))
            taught = await _changed(workers, model.teach, name, images)
        return learned_answer(taught, await workers.read(getattr, model, "version"))

    @router.post("/api/forget", responses=_errors(404, 409, 413, 422), summary="Forget a class")
    async def forget(wanted: schemas.Name) -> schemas.Forgotten:
        """The others stay as they are."""
        name = _cleaned(wanted.name)
        if all(known.name != name for known in await workers.read(model.classes)):
            raise Refused(404, f"There is no class called {name}.")
        await _changed(workers, model.forget, name)
        return schemas.Forgotten(name=name, version=await workers.read(getattr, model, "version"))

    @router.post("/api/undo", responses=_errors(409), summary="Take back the last change")
    async def undo() -> schemas.Undone:
        """The change before it is then the last one."""
        undone = await _changed(workers, model.undo)
        return schemas.Undone(undone=undone, version=await workers.read(getattr, model, "version"))


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


async def _changed(workers: Workers, work: Any, *given: Any) -> Any:
    try:
        return await workers.change(work, *given)
    except BusyError as error:
        raise Refused(503, str(error), {"retry-after": "2"}) from None
    except ModelError as error:
        raise Refused(409, str(error)) from None


def _client(request: Request) -> str:
    return who(request.client.host if request.client is not None else "unknown")


def _cleaned(name: str | None) -> str:
    try:
        return clean_name(name or "")
    except ModelError as error:
        raise Refused(422, str(error)) from None


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
    """Return the page.

    Args:
        api: the OpenAPI description.
    """
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
    for status, answer in operation["responses"].items():
        if status == "200":
            for schema in [kind["schema"] for kind in answer.get("content", {}).values() if kind.get("schema")][:1]:
                parts.append(
                    f"<h3>Answer</h3><pre>{text(json.dumps(_example(schema, api), indent=1, ensure_ascii=False))}</pre>"
                )
    errors = {status: answer for status, answer in operation["responses"].items() if status != "200"}
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
