# Indelible's server and worker, with the extras (PostgreSQL, traces, …). docs/operations.md says how to run it, and
# tests/server/test_container.py checks this file as far as that is possible without building it.

FROM python:3.13-slim AS build
WORKDIR /src
COPY run.lock ./
RUN python -m venv /opt/indelible \
    && /opt/indelible/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r run.lock
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/indelible/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation . \
    && /opt/indelible/bin/pip check

FROM python:3.13-slim
RUN useradd --system --uid 10001 --home-dir /data --create-home indelible
COPY --from=build /opt/indelible /opt/indelible
ENV PATH=/opt/indelible/bin:$PATH \
    INDELIBLE_HOST=0.0.0.0 \
    INDELIBLE_DATABASE=/data/indelible.db \
    INDELIBLE_LOG_FORMAT=json \
    INDELIBLE_DRAIN_S=30
USER 10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8000
# A worker needs `--port 8000` for it (compose.yaml).
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ.get('INDELIBLE_PORT', '8000')}/readyz\", timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["indelible"]
CMD ["serve"]
