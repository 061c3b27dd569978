"""Embeddings as answers: plain JSON, OpenAI's JSON, npy and npz."""

import base64
import io
import json
import re
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response

from serve.engine import Embedded
from serve.messages import EmbeddingsRequest, EmbedQuery
from serve.refusal import Refused
from serve.session import Session
from zoo.model.embedding import unit_rows

NPY, NPZ, JSON = "application/x-npy", "application/x-npz", "application/json"
WEIGHT = re.compile(r"q=(0(\.[0-9]*)?|1(\.0*)?)")


def finished(embedded: Embedded, *, normalize: bool, dimensions: int | None) -> Embedded:
    """Rows cut to their first `dimensions` numbers (unit L2 norm again), or only scaled to it, or as they are."""
    rows, dim = embedded.rows, embedded.session.dim
    if dimensions is not None and dimensions > dim:
        raise Refused(400, f"dimensions={dimensions}; {embedded.session.name} has {dim}", param="dimensions")
    if dimensions is not None or normalize:
        rows = unit_rows(rows[:, :dimensions])
    return embedded._replace(rows=rows)


def plain(embedded: Embedded, *, skipped: bool = False) -> dict[str, Any]:
    """The JSON answer: which model, D, and one row of D numbers an image; float32 survives the text exactly.

    skipped: whether images could be left out; then it says which are here, and why others are not.
    """
    rows = embedded.rows
    answer = {"model": embedded.session.name, "dim": rows.shape[1], "embeddings": rows.tolist()}
    return answer | ({"index": embedded.places, "errors": reasons(embedded)} if skipped else {})


def openai(embedded: Embedded, request: EmbeddingsRequest) -> dict[str, Any]:
    """The answer of OpenAI's endpoint; `usage` counts tokens there, so it is zero, and our images."""
    rows: list[Any] = embedded.rows.tolist()
    if request.encoding_format == "base64":
        rows = [base64.b64encode(row.tobytes()).decode() for row in embedded.rows.astype("<f4")]
    data = [
        {"object": "embedding", "index": index, "embedding": row}
        for index, row in zip(embedded.places, rows, strict=True)
    ]
    usage = {"prompt_tokens": 0, "total_tokens": 0, "images": len(data)}
    answer = {"object": "list", "model": embedded.session.name, "data": data, "usage": usage}
    return answer | ({"errors": reasons(embedded)} if request.on_error == "skip" else {})


def reasons(embedded: Embedded) -> list[dict[str, Any]]:
    """Why images have no embedding: index, code and message of each."""
    return [{key: refusal.error[key] for key in ("index", "code", "message")} for refusal in embedded.errors]


def accepted(query: EmbedQuery, accept: str) -> str:
    """The format of an answer: what the Accept header likes best. Raises Refused for a dtype that JSON has not."""
    kind = liked_best(accept)
    if kind == JSON and query.dtype != "float32":
        raise Refused(
            400, f"dtype={query.dtype} is for answers in {NPY} or {NPZ}; ask for one by Accept", param="dtype"
        )
    return kind


def liked_best(accept: str) -> str:
    """That of our formats which an Accept header gives the largest weight, the first of equals; JSON if it names none.

    A weight is `q` in [0, 1], 1 where none stands; 0 says never (RFC 9110, section 12.4.2).
    """
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        given = [float(word[2:]) for word in parameters if WEIGHT.fullmatch(word)]
        if kind in (NPY, NPZ, JSON) and (weight := min(given, default=1.0)) > 0:
            weights[kind] = weight
    return max(weights, key=lambda kind: weights[kind], default=JSON)


def answer(embedded: Embedded, query: EmbedQuery, kind: str) -> Response:
    """The answer to a query in one of the three formats."""
    skipped = query.on_error == "skip"
    headers = {"x-model-id": embedded.session.name, "x-embedding-dim": str(embedded.rows.shape[1])}
    if skipped:
        headers["x-image-index"] = ",".join(map(str, embedded.places))
        headers["x-image-errors"] = ",".join(f"{row['index']}:{row['code']}" for row in reasons(embedded))
    if kind == NPY:
        return Response(_npy(_typed(embedded.rows, query.dtype)), media_type=NPY, headers=headers)
    if kind == NPZ:
        return Response(_npz(embedded, query.dtype), media_type=NPZ, headers=headers)
    return JSONResponse(plain(embedded, skipped=skipped), headers=headers)


def facts(session: Session) -> dict[str, Any]:
    """A row of the model list."""
    numbers = {"dim": session.dim, "image_size": session.image_size, "weights_sha256": session.weights_sha256}
    more = {"aliases": session.aliases} | ({"licence": session.licence} if session.licence else {})
    return {"id": session.name, "object": "model"} | numbers | more


def _typed(rows: np.ndarray, dtype: str) -> np.ndarray:
    """Little-endian rows. Raises Refused where float16 cannot hold them."""
    with np.errstate(over="ignore"):
        typed = rows.astype("<f2" if dtype == "float16" else "<f4")
    if not np.isfinite(typed).all():
        raise Refused(
            400, "an embedding has a number above 65504, too large for float16; normalize=true", param="dtype"
        )
    return typed


def _npy(rows: np.ndarray) -> bytes:
    """(n, D) in C order, as `numpy.load` reads it."""
    out = io.BytesIO()
    np.save(out, rows, allow_pickle=False)
    return out.getvalue()


def _npz(embedded: Embedded, dtype: str) -> bytes:
    """`embeddings` (m, D), `index` (m,), `model`, `weights_sha256`, and `errors` as JSON text."""
    out = io.BytesIO()
    np.savez(
        out,
        embeddings=_typed(embedded.rows, dtype),
        index=np.array(embedded.places, np.int64),
        model=np.array(embedded.session.name),
        weights_sha256=np.array(embedded.session.weights_sha256),
        errors=np.array(json.dumps(reasons(embedded))),
    )
    return out.getvalue()
