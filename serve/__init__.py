"""An encoder as one ONNX file, and a server that answers with it.

export   a model to `model.onnx`, parity-checked (needs torch)
session  an ONNX file as a function of images
service  the BentoML service: `ZOO_MODEL=... bentoml serve serve.service:Embeddings`
         guard (body, errors) -> routes (/v1) or the native endpoint -> engine (decode) -> batcher -> session
limits   what one request may hold; refusal: how it is told what was wrong
"""
