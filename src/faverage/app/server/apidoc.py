"""The page that documents the API, made from its OpenAPI description; nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import lru_cache
from typing import Any

from faverage.report.page import STYLE, page, text

__all__ = ["describe", "style_hash"]

_MORE = """
.call { display: flex; flex-wrap: wrap; gap: .6rem; align-items: baseline; font: 600 1.05rem ui-monospace, monospace;
  overflow-wrap: anywhere; }
.call b { font-size: .8rem; background: var(--mark); border-radius: .3rem; padding: .1rem .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; font-size: .92rem; margin: .4rem 0 .8rem; }
dt { font-family: ui-monospace, monospace; } dd { margin: 0; color: var(--soft); }
"""

Json = dict[str, Any]


@lru_cache(1)
def style_hash() -> str:
    """Return the hash of the page's style sheet, as a Content-Security-Policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256((STYLE + _MORE).encode()).digest()).decode()


def describe(api: Json) -> str:
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
