"""What Prometheus may know: counts and seconds under labels of a bounded set (routes, statuses, served models)."""

import os

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

REGISTRY = CollectorRegistry()
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # upper bounds of the histograms' buckets

requests = Counter("zoo_requests", "Answered requests", ["route", "status"], registry=REGISTRY)
request_seconds = Histogram(
    "zoo_request_seconds",
    "From the end of the headers to the end of the answer",
    ["route"],
    buckets=SECONDS,
    registry=REGISTRY,
)
images = Counter("zoo_images", "Images, by what became of them", ["model", "outcome"], registry=REGISTRY)
decode_seconds = Histogram(
    "zoo_decode_seconds", "Bytes to pixels, one image", ["model"], buckets=SECONDS, registry=REGISTRY
)
queue_seconds = Histogram(
    "zoo_queue_seconds",
    "From pixels to the start of their run, one image",
    ["model"],
    buckets=SECONDS,
    registry=REGISTRY,
)
inference_seconds = Histogram(
    "zoo_inference_seconds", "One run of the model", ["model"], buckets=SECONDS, registry=REGISTRY
)
batch_images = Histogram("zoo_batch_images", "Images of one run", ["model"], buckets=(1, 2, 4, 8), registry=REGISTRY)


def exposition() -> bytes:
    """Everything counted so far, by all workers of this server, in Prometheus's text format."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest(REGISTRY)
    together = CollectorRegistry()
    MultiProcessCollector(together)
    return generate_latest(together)
