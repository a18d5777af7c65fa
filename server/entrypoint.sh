#!/bin/sh
# How the container starts. Loopback reaches nobody outside a container, so `serve` listens on every interface there, but only where what
# it decides outlives the container: on a Redis of its own (GAVEL_REDIS or --redis), or with a volume mounted at /data. Otherwise it
# stays on loopback and says why. Whoever says where to listen (GAVEL_LISTEN or --listen) is obeyed, with the server's own safeguards.
set -eu

# given OPTION ARGUMENT...: whether the option is among the arguments.
given() {
  option=$1
  shift
  case " $* " in *" $option "* | *" $option="*) return 0 ;; esac
  return 1
}

if [ "${1:-}" = serve ] && [ -z "${GAVEL_LISTEN:-}" ] && ! given --listen "$@"; then
  if [ -n "${GAVEL_REDIS:-}" ] || given --redis "$@" || mountpoint -q /data; then
    # A container's network is its own: who else reaches the port, and may then claim to be any producer, is decided where it is published.
    export GAVEL_LISTEN=0.0.0.0:9090 GAVEL_ALLOW_UNAUTHENTICATED_NETWORK=true
  else
    echo "gavel: neither a Redis (GAVEL_REDIS, --redis) nor a volume at /data is given, and decisions would be lost with this container:" \
      "it listens on its own loopback only" >&2
  fi
fi
exec gavel "$@"
