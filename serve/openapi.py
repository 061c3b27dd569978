"""The OpenAPI document of the whole server, and a page that shows it without a single script."""

from html import escape
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from serve.answers import NPY, NPZ
from serve.messages import IMAGE, EmbeddingsRequest, EmbedQuery, SearchRequest, SimilarityRequest
from serve.refusal import CODES

REF = "#/components/schemas/"
NUMBERS = {"type": "array", "items": {"type": "number"}}
TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}


def _object(**properties: Any) -> dict[str, Any]:
    """The schema of an object that has all these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _may_skip(schema: dict[str, Any], **properties: Any) -> dict[str, Any]:
    """The schema of an answer that has more properties when it was asked for with on_error=skip."""
    skipped = "with on_error=skip also " + " and ".join(f"`{name}`" for name in properties)
    return schema | {"properties": schema["properties"] | properties, "description": skipped}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


REASON = _object(index=COUNT, code=TEXT, message=TEXT)
MODEL = _object(id=TEXT, object={"const": "model"}, dim=COUNT, image_size=COUNT, weights_sha256=TEXT)
ANSWERS: dict[str, dict[str, Any]] = {
    "Error": _object(
        error=_object(
            code=TEXT,
            message=TEXT,
            param={"type": ["string", "null"]},
            index={"type": ["integer", "null"], "description": "the image at fault"},
            request_id=TEXT,
        )
    ),
    "Embedded": _may_skip(
        _object(model=TEXT, dim=COUNT, embeddings=_list(NUMBERS)), index=_list(COUNT), errors=_list(REASON)
    ),
    "OpenAIEmbeddings": _may_skip(
        _object(
            object={"const": "list"},
            model=TEXT,
            data=_list(_object(object={"const": "embedding"}, index=COUNT, embedding={"anyOf": [NUMBERS, TEXT]})),
            usage=_object(prompt_tokens=COUNT, total_tokens=COUNT, images=COUNT),
        ),
        errors=_list(REASON),
    ),
    "Similarities": _object(model=TEXT, similarities=NUMBERS),
    "Neighbours": _object(index=TEXT, model=TEXT, neighbours=_list(_object(path=TEXT, similarity={"type": "number"}))),
    "Model": MODEL,
    "Models": _object(object={"const": "list"}, data=_list(MODEL)),
    "Indexes": _object(object={"const": "list"}, data=_list(_object(id=TEXT, model=TEXT, images=COUNT))),
}
BINARY = {"type": "string", "format": "binary"}


def document(native: dict[str, type[BaseModel]]) -> dict[str, Any]:
    """OpenAPI 3.1. native: the models `Images` and `Answer` of BentoML's endpoint."""
    messages: list[type[BaseModel]] = [EmbeddingsRequest, SimilarityRequest, SearchRequest, *native.values()]
    _, schemas = models_json_schema([(kind, "validation") for kind in messages], ref_template=REF + "{model}")
    return {
        "openapi": "3.1.0",
        "info": {"title": "contrastive-zoo", "version": "1", "license": {"name": "Apache-2.0"}},
        "security": [{}, {"key": []}],
        "components": {
            "schemas": schemas["$defs"] | ANSWERS,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "paths": _paths(),
    }


def _paths() -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": TEXT}
    embed = _operation("Embeddings of image files", "Embedded", 400, 404, 413, 415, 422)
    embed["parameters"] = _query_parameters()
    embed["responses"]["200"]["content"] |= {kind: {"schema": BINARY} for kind in (NPY, NPZ)}
    form = _object(images=_list(BINARY)) | {"additionalProperties": False}
    embed["requestBody"] = {
        "required": True,
        "content": {"multipart/form-data": {"schema": form}, "image/*": {"schema": BINARY}},
    }
    return {
        "/v1/embed": {"post": embed},
        "/v1/embeddings": {"post": _json("Embeddings in OpenAI's shape", "EmbeddingsRequest", "OpenAIEmbeddings")},
        "/v1/similarity": {"post": _json("Cosines of one image with others", "SimilarityRequest", "Similarities")},
        "/v1/search": {"post": _json("The nearest images of an indexed folder", "SearchRequest", "Neighbours")},
        "/v1/indexes": {"get": _operation("The indexes of this server", "Indexes")},
        "/v1/models": {"get": _operation("The models of this server", "Models")},
        "/v1/models/{name}": {"get": _operation("One model", "Model", 404) | {"parameters": [name]}},
        "/embed": {"post": _json("Embeddings, for bentoml.SyncHTTPClient", "Images", "Answer")},
    }


def _json(summary: str, request: str, answer: str) -> dict[str, Any]:
    """An operation that reads one JSON object."""
    body = {"required": True, "content": {"application/json": {"schema": {"$ref": REF + request}}}}
    return _operation(summary, answer, 400, 404, 413, 415, 422) | {"requestBody": body}


def _operation(summary: str, answer: str, *errors: int) -> dict[str, Any]:
    """An operation with its answer, its own errors, and those that every path can have."""
    responses: dict[str, Any] = {"200": _response("Answered", answer)}
    for status in sorted({*errors, 401, 429, 500, 503, 504}):
        responses[str(status)] = _response(CODES.get(status, "internal"), "Error")
    return {"summary": summary, "responses": responses}


def _response(description: str, schema: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": {"$ref": REF + schema}}}}


def _query_parameters() -> list[dict[str, Any]]:
    properties = EmbedQuery.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "schema": _nonnull(schema)} for name, schema in properties.items()]


def _nonnull(schema: dict[str, Any]) -> dict[str, Any]:
    """A query cannot say null: the schema of what it can say."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    return {
        key: value for key, value in (schema | (kinds[0] if kinds else {})).items() if key not in ("anyOf", "default")
    }


def docs_page(spec: dict[str, Any]) -> str:
    """The document as HTML: every path, what it reads and what it answers."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        "<title>contrastive-zoo API</title>",
        f"<link rel=stylesheet href=page.css><main><h1>API</h1><p>In a JSON body, an image is {IMAGE}. ",
        "<a href=openapi.json>openapi.json</a> is this page for programs.</p>",
    ]
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>")
            parts.append(_fields_table(_asked(spec, operation)))
            parts.append(f"<p>Answers: {', '.join(operation['responses'])}</p>")
    return "".join([*parts, "</main></html>"])


def _asked(spec: dict[str, Any], operation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Field name -> schema, of the query and the JSON body of an operation."""
    fields = {each["name"]: each["schema"] for each in operation.get("parameters", [])}
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body:
        fields |= spec["components"]["schemas"][body["schema"]["$ref"].removeprefix(REF)]["properties"]
    return fields


def _fields_table(fields: dict[str, dict[str, Any]]) -> str:
    if not fields:
        return ""
    rows = []
    for name, schema in fields.items():
        cells = f"<td>{escape(_kind(schema))}<td>{escape(schema.get('description', ''))}"
        rows.append(f"<tr><th scope=row><code>{escape(name)}</code>{cells}")
    head = "<thead><tr><th scope=col>field<th scope=col>type<th scope=col>meaning"
    return f"<div class=wide><table>{head}<tbody>{''.join(rows)}</table></div>"


def _kind(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(schema["enum"])
    return schema.get("type") or " or ".join(each["type"] for each in schema.get("anyOf", []))
