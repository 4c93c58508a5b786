# syntax=docker/dockerfile:1
# A tag and no digest: a rebuild has the fixes of the base. A release may name a digest:
# --build-arg PYTHON_IMAGE=python:3.11-slim@sha256:...
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE} AS build
ENV UV_COMPILE_BYTECODE=0 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir "uv>=0.9,<1"
WORKDIR /app
COPY pyproject.toml uv.lock README.md LICENSE ./
# What a server never imports: gradio and what it brings, without OpenEnv's web interface; and the
# checkpoints of the trainer.
ARG WITH_WEB_INTERFACE=false
RUN skip="--no-install-package orbax-checkpoint --no-install-package tensorstore"; \
    if [ "$WITH_WEB_INTERFACE" != true ]; then \
      for name in gradio gradio-client pandas pillow; do skip="$skip --no-install-package $name"; done; \
    fi; \
    uv sync --frozen --no-dev --no-install-project --extra server --extra gateway $skip
RUN find .venv -type d -name tests -prune -exec rm -rf {} + \
    && rm -f .venv/lib/python3.11/site-packages/pyarrow/libarrow_flight* \
             .venv/lib/python3.11/site-packages/pyarrow/libarrow_s3* \
             .venv/lib/python3.11/site-packages/pyarrow/_flight*
COPY jaxserve jaxserve
COPY data data
COPY server server
COPY inference.py openenv.yaml ./

FROM ${PYTHON_IMAGE}
WORKDIR /app
COPY --from=build /app /app
# The server's user owns the sessions and, while the image is built, the compiled programs.
RUN useradd --create-home --uid 1000 jaxserve && install -d -o jaxserve /sessions /app/.jax_cache
ENV PATH=/app/.venv/bin:$PATH \
    PYTHONPATH=/app \
    JAX_PLATFORMS=cpu \
    JAX_COMPILATION_CACHE_DIR=/app/.jax_cache \
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
    JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1 \
    XDG_STATE_HOME=/tmp/state
# Compiles while the image is built, so that a container answers within seconds: the byte code of what
# servers import (live ones, the gateway and the mock engine too), and the simulator's programs.
RUN python -c "import server.wiring, server.live.live_service, jaxserve.gateway.app.serve, jaxserve.mock_engine.serve"
USER jaxserve
RUN python -m server.sessions.compiling
EXPOSE 7860 8000
# There is no VOLUME: OpenEnv's validation refuses images that have one. The compose file mounts one.
HEALTHCHECK --interval=15s --timeout=5s --start-period=40s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/health', timeout=4)"]
CMD ["python", "-m", "server.app", "--port", "7860", "--port", "8000"]
