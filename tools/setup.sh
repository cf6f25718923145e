#!/bin/sh
# Installs what Tessera needs to build, test and run its examples: Debian 12, Ubuntu 22.04 and newer. As root it installs
# what is missing; otherwise it prints the one line that does. Elsewhere it only checks that the tools are there.
set -eu

packages="g++ meson ninja-build pkg-config python3
  libopenmpi-dev openmpi-bin libboost-mpi-dev libboost-serialization-dev libhdf5-openmpi-dev libdnnl-dev
  libniftiio-dev libnifti2-dev libznz-dev
  libfftw3-dev libcli11-dev nlohmann-json3-dev doctest-dev libbenchmark-dev gnuplot-nox"

if ! command -v dpkg-query > /dev/null; then
  missing=
  for tool in c++ meson ninja pkg-config python3 mpirun; do
    command -v "$tool" > /dev/null || missing="$missing $tool"
  done
  [ -z "$missing" ] && exit 0
  echo "Please install:$missing, and the libraries that README.md lists." >&2
  exit 1
fi

missing=
for package in $packages; do
  case $(dpkg-query -W -f '${db:Status-Status} ' "$package" 2> /dev/null) in
  *installed*) ;;
  *) missing="$missing $package" ;;
  esac
done
[ -z "$missing" ] && exit 0

install="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" -ne 0 ]; then
  echo "Packages are missing. Please run:" >&2
  echo "  sudo apt-get update && sudo $install" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
echo "Installing:$missing"
apt-get -qq update
# shellcheck disable=SC2086 # one word a package
$install -qq > /dev/null
