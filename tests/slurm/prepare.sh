#!/bin/sh
# Install what the tests against a real Slurm need, where that is possible; says why where it is not.
set -eu
if ! command -v slurmctld >/dev/null || ! command -v mariadbd >/dev/null || ! command -v munged >/dev/null; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "make test-slurm: skipped: no Slurm here, and no root with apt-get to install it"
    exit 3
  fi
  apt-get update -qq || {
    echo "make test-slurm: skipped: Debian's packages cannot be fetched here"
    exit 3
  }
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm slurmdbd mariadb-server munge >/dev/null || {
    echo "make test-slurm: skipped: Debian's packages of Slurm cannot be installed here"
    exit 3
  }
fi
for number in 1 2 3 4 5; do
  id "user$number" >/dev/null 2>&1 || useradd --no-create-home "user$number"
done
