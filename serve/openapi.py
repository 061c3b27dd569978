"""The OpenAPI document of the whole server, derived from the endpoint table."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from serve.messages import Error
from serve.refusal import CODES

if TYPE_CHECKING:
    from serve.endpoints import Endpoint

REF = "#/components/schemas/"
BINARY = {"type": "string", "format": "binary"}
ALWAYS = (401, 403, 429, 500, 503, 504)  # statuses that every endpoint can answer with


def document(endpoints: "Iterable[Endpoint]") -> dict[str, Any]:
    """OpenAPI 3.1 of the endpoints that have a summary."""
    shown = [endpoint for endpoint in endpoints if endpoint.summary]
    models: list[type[BaseModel]] = [Error]
    models += [model for each in shown for model in (each.body, each.answer) if model]
    _, schemas = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)], ref_template=REF + "{model}"
    )
    paths: dict[str, Any] = {}
    for endpoint in shown:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "contrastive-zoo", "version": "1", "license": {"name": "Apache-2.0"}},
        "security": [{}, {"key": []}],
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "paths": paths,
    }


def _operation(endpoint: "Endpoint") -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": _schema_of(endpoint.answer)} if endpoint.answer else {}
    content |= {media_type: {"schema": BINARY} for media_type in endpoint.media_types}
    responses: dict[str, Any] = {"200": {"description": "Answered"} | ({"content": content} if content else {})}
    for status in sorted({*endpoint.errors, *ALWAYS}):
        error = {"application/json": _schema_of(Error)}
        responses[str(status)] = {"description": CODES.get(status, "internal"), "content": error}
    operation: dict[str, Any] = {"summary": endpoint.summary, "responses": responses}
    if parameters := _parameters(endpoint):
        operation["parameters"] = parameters
    if body := _bodies(endpoint):
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _parameters(endpoint: "Endpoint") -> list[dict[str, Any]]:
    found = []
    if endpoint.path.endswith("{name}"):
        found.append({"name": "name", "in": "path", "required": True, "schema": {"type": "string"}})
    properties = endpoint.query.model_json_schema()["properties"] if endpoint.query else {}
    return found + [{"name": name, "in": "query", "schema": _nonnull(each)} for name, each in properties.items()]


def _bodies(endpoint: "Endpoint") -> dict[str, Any]:
    """Content type -> schema of what the endpoint reads."""
    if endpoint.body:
        return {"application/json": _schema_of(endpoint.body)}
    if not endpoint.files:
        return {}
    files = {"type": "array", "items": BINARY, "description": "one part for each image file"}
    form = {"type": "object", "properties": {endpoint.files: files}, "required": [endpoint.files]}
    raw = {"schema": BINARY | {"description": "one image file"}}
    return {"multipart/form-data": {"schema": form | {"additionalProperties": False}}, "image/*": raw}


def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return {"schema": {"$ref": REF + model.__name__}}


def _nonnull(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a query parameter, which cannot be null."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    merged = schema | (kinds[0] if kinds else {})
    return {key: value for key, value in merged.items() if key != "anyOf" and (key != "default" or value is not None)}
