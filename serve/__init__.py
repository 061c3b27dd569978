"""An encoder as one ONNX file, and a server that answers with it.

export     a model to `model.onnx`, parity-checked (needs torch); quantize: to `model.int8.onnx`, measured
onnx_file  the same for a ResNet at its first start, without torch; resnet_graph: its graph
session    an ONNX file as a function of images; file_structure: what an encoded image may consist of
endpoints  the table of endpoints; app: its router; openapi and docs: its documentation; handlers, pages: its functions
service    the BentoML service: `ZOO_MODEL=... bentoml serve serve.service:Embeddings`; launch: `zoo serve`
           guard (peers, keys, body, errors) -> handlers -> engine -> decoders -> batcher -> session
fair       turns among clients and requests; admission: refuses what would wait too long; draining: an orderly end
limits     what one request may hold; messages: what it may say; form: its files; refusal: the shape of errors
answers    in JSON, npy and npz; metrics
index      `zoo index`: the embeddings of a folder; search: the nearest of them
bulk       the embeddings of very many images, with Ray Data; inputs: where they come from
client     a typed client, for programs in Python
"""

from zoo.libraries import configure_libraries

configure_libraries()
