"""An encoder as one ONNX file, and a server that answers with it.

export   a model to `model.onnx`, parity-checked (needs torch); quantize: to `model.int8.onnx`, measured
session  an ONNX file as a function of images; pieces: what an encoded one may be made of
service  the BentoML service: `ZOO_MODEL=... bentoml serve serve.service:Embeddings`; launch: `zoo serve`
         guard (body, errors) -> routes (/v1) or the native endpoint -> engine (decode) -> batcher -> session
limits   what one request may hold; messages: what it may say; form: its files; refusal: how it is told what was wrong
answers  in JSON, npy and npz; site: the page (page/), the documentation (openapi), metrics
index    `zoo index`: the embeddings of a folder; search: the nearest of them
bulk     the embeddings of very many images, with Ray Data; inputs: where they come from
client   a typed client, for programs in Python
"""

from zoo.libraries import configure_libraries

configure_libraries()
