"""torch eager behind FastAPI, as one writes it in an afternoon: `python tests/bench/eager_server.py RUN PORT`.

What `serve_bench.py` compares with: raw image bodies in, npy out, decoded and embedded in FastAPI's own threads.
"""

import io
import sys

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

import zoo

app = FastAPI()
encoder = zoo.load(sys.argv[1])


def npy(body: bytes) -> bytes:
    """The embedding (1, D) of one encoded image."""
    out = io.BytesIO()
    np.save(out, encoder.embed([body]))
    return out.getvalue()


@app.post("/v1/embed")
async def embed(request: Request) -> Response:
    return Response(await run_in_threadpool(npy, await request.body()), media_type="application/x-npy")


@app.get("/readyz")
def ready() -> None: ...


torch.set_num_threads(1)
uvicorn.run(app, port=int(sys.argv[2]), log_level="error")
