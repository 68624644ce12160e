#!/bin/sh
# Get what the tests of the page need, where that is possible; says why where it is not.
set -eu
if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "make test-web: skipped: no chromium here, and no root with apt-get to install it"
    exit 3
  fi
  apt-get update -qq || {
    echo "make test-web: skipped: Debian's packages cannot be fetched here"
    exit 3
  }
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null || {
    echo "make test-web: skipped: Debian's package of chromium cannot be installed here"
    exit 3
  }
fi
# unpacked beside the tree, not installed: its test starts it itself
if ! command -v prometheus >/dev/null && [ ! -x build/prometheus/usr/bin/prometheus ] && command -v apt-get >/dev/null; then
  mkdir -p build/prometheus
  (cd build/prometheus && apt-get download -qq prometheus 2>/dev/null && dpkg -x prometheus_*.deb .) ||
    echo "make test-web: no Prometheus can be fetched; its test is skipped"
fi
# without a cluster of its own: the test makes one and ends it
if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  mkdir -p /etc/postgresql-common
  [ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >/dev/null ||
    echo "make test-web: no PostgreSQL can be installed; its test is skipped"
fi
