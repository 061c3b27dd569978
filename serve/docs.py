"""The OpenAPI document as a page: every endpoint, what it reads, what it answers, and a form that sends an example."""

import json
from html import escape
from typing import Any

from serve.messages import IMAGE

REF = "#/components/schemas/"
# a PNG of 8 x 8 pixels, base64
SAMPLE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAbElEQVR42hXNQRUAUQhCUaMYhShGeVGIQhSizB+XXA7ODDtouIHBQ4YOM8suWm5h8Z"
    "Kl+0CskDiBsIioHhx76LiDw0eO3oN/4FVf+J8h0PduzBqZ8x/bxNQPwgaFy192SGgelC0q13/CJaXlA8Z7WAFXOTbyAAAAAElFTkSuQmCC"
)
EXAMPLES = {"input": SAMPLE, "images": [SAMPLE], "image": SAMPLE, "a": SAMPLE, "b": [SAMPLE]}
HEAD = """<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>
<title>contrastive-zoo API</title><link rel=icon href='data:,'><link rel=stylesheet href=page.css>
<script src=docs.js defer></script><main><h1>API</h1>
<p>In a JSON body, an image is IMAGE. <a href=openapi.json>openapi.json</a> is this page for programs;
<a href='./'>the start page</a> compares images. Every error is
<code>{"error": {"code", "message", "param", "index", "request_id"}}</code>.</p>
<p><label for=key>Key</label> <input id=key type=password autocomplete=off>
(only if the server was started with <code>ZOO_API_KEY</code>)</p>"""


def docs_page(spec: dict[str, Any]) -> str:
    """HTML of an OpenAPI document that `serve.openapi.document` made."""
    sections = [
        _section(spec, method, path, operation)
        for path, operations in spec["paths"].items()
        for method, operation in operations.items()
    ]
    return "".join([HEAD.replace("IMAGE", escape(IMAGE)), *sections, "</main></html>"])


def _section(spec: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"]
    parameters = operation.get("parameters", [])
    rows = [(each["name"], each["schema"], each.get("required", False)) for each in parameters]
    parts.append(_table("Query and path", rows))
    bodies = operation.get("requestBody", {}).get("content", {})
    for media_type, content in bodies.items():
        schema = _resolved(spec, content["schema"])
        if media_type == "image/*":
            parts.append(f"<p>Or a body of <code>{media_type}</code>: one image file as it is.</p>")
            continue
        required = schema.get("required", [])
        fields = [(name, each, name in required) for name, each in schema["properties"].items()]
        parts.append(_table(f"Body: {media_type}", fields))
    parts.append(_answers(spec, operation))
    parts.append(_trial(spec, method, path, bodies))
    return "".join(parts)


def _table(caption: str, fields: list[tuple[str, dict[str, Any], bool]]) -> str:
    if not fields:
        return ""
    rows = []
    for name, schema, required in fields:
        default = "" if required else escape(json.dumps(schema["default"])) if "default" in schema else ""
        cells = [
            _type_of(schema),
            "required" if required else "optional",
            default,
            escape(schema.get("description", "")),
        ]
        rows.append(f"<tr><th scope=row><code>{escape(name)}</code>" + "".join(f"<td>{cell}" for cell in cells))
    head = "".join(f"<th scope=col>{name}" for name in ("field", "type", "", "default", "meaning"))
    head = head.replace("<th scope=col><", "<td><")  # no header without a name
    table = f"<table><caption>{escape(caption)}</caption><thead><tr>{head}<tbody>{''.join(rows)}</table>"
    return f"<div class=wide tabindex=0 role=region aria-label='{escape(caption)}'>{table}</div>"


def _type_of(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return escape(" or ".join(map(str, schema["enum"])))
    if schema.get("format") == "binary":
        return "file"
    if schema.get("type") == "array":
        return f"list of {_type_of(schema['items'])}"
    return escape(schema.get("type") or " or ".join(_type_of(each) for each in schema.get("anyOf", [])))


def _answers(spec: dict[str, Any], operation: dict[str, Any]) -> str:
    """The shape of the answer, its binary formats, and the statuses of errors."""
    parts = []
    for media_type, content in operation["responses"]["200"].get("content", {}).items():
        if media_type == "application/json":
            shape = json.dumps(_shape(spec, content["schema"]), indent=1)
            parts.append(f"<p>Answer, <code>200</code>:</p><pre class=wide tabindex=0>{escape(shape)}</pre>")
        else:
            parts.append(f"<p>With the header <code>Accept: {media_type}</code>: the rows as a NumPy file.</p>")
    errors = {status: each["description"] for status, each in operation["responses"].items() if status != "200"}
    return "".join(parts) + f"<p>Errors: {', '.join(f'{status} {code}' for status, code in errors.items())}</p>"


def _shape(spec: dict[str, Any], schema: dict[str, Any]) -> Any:
    """An answer with the types in the places of its values."""
    schema = _resolved(spec, schema)
    if "const" in schema:
        return schema["const"]
    if schema.get("type") == "object" and "properties" in schema:
        return {name: _shape(spec, each) for name, each in schema["properties"].items()}
    if schema.get("type") == "array":
        return [_shape(spec, schema["items"])]
    kinds = [_shape(spec, each) for each in schema.get("anyOf", [])]
    return " or ".join(map(str, kinds)) if kinds else schema.get("type", "any")


def _resolved(spec: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref", "")
    return spec["components"]["schemas"][reference.removeprefix(REF)] if reference else schema


def _trial(spec: dict[str, Any], method: str, path: str, bodies: dict[str, Any]) -> str:
    """A form that sends the request from the page; docs.js does it."""
    target = path.removeprefix("/")
    if "{" in path:
        target = "v1/models"
    inner = ""
    if "application/json" in bodies:
        schema = _resolved(spec, bodies["application/json"]["schema"])
        body = {name: EXAMPLES[name] for name in schema.get("required", []) if name in EXAMPLES}
        inner = f"<textarea name=body rows=3 aria-label='JSON body'>{escape(json.dumps(body))}</textarea>"
    elif bodies:
        inner = "<input type=file name=files multiple aria-label='image files'> "
        inner += "<small>none chosen: a sample image is sent</small>"
    label = escape(f"Send {method.upper()} /{target}")
    form = f"<form data-method={method.upper()} data-path='{escape(target)}' data-sample='{SAMPLE}'>{inner}"
    return f"{form}<p><button>{label}</button></p><pre class=wide hidden tabindex=0 aria-live=polite></pre></form>"
