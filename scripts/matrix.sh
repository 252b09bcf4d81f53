#!/bin/sh
# Runs the Python tests with other releases of torch than the pinned one, each in an environment of its own.
#
#   sh scripts/matrix.sh PYTHON "2.9.1 2.11.0" [PYTEST ARGUMENTS...]
set -eu
cd "$(dirname "$0")/.."
python=$1 releases=$2
shift 2
for release in $releases; do
    venv=".venv-torch-$release"
    if [ ! -x "$venv/bin/pytest" ]; then
        "$python" -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet uv
        "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "torch==$release" torchvision \
            accelerate numpy pytest pytest-xdist transformers
    fi
    "$venv/bin/python" -m pip install --quiet --no-deps .
    echo "torch $release"
    "$venv/bin/python" -m pytest "$@"
done
