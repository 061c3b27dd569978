# The server without torch. It serves the bundled models, and models that are mounted:
#   docker build -t contrastive-zoo .
#   docker run --read-only --tmpfs /tmp -p 127.0.0.1:3000:3000 -e ZOO_API_KEY -v ./runs:/runs:ro contrastive-zoo /runs/simco-r20-digits
#   docker run --read-only --tmpfs /tmp --network none ... contrastive-zoo simco-r18-cifar100-cpu
FROM python:3.11-slim
WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY zoo zoo
COPY serve serve
COPY eval eval
COPY train train
RUN pip install --no-cache-dir ".[index]" && useradd --uid 10001 --no-create-home zoo && rm -rf /app/*
USER 10001
ENV PYTHONUNBUFFERED=1 BENTOML_HOME=/tmp/bentoml ZOO_HOME=/tmp/zoo BENTOML_DO_NOT_TRACK=True ORT_DISABLE_TELEMETRY=1
WORKDIR /tmp
EXPOSE 3000
HEALTHCHECK --interval=10s --start-period=30s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:3000/readyz', timeout=5)"]
ENTRYPOINT ["zoo", "serve", "--host", "0.0.0.0"]
