#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Run every test that can run on this machine.
#
#   tools/run_tests.sh [arguments for pytest]
#   tools/run_tests.sh --install
#
# Makes a virtual environment (.venv-tests) with the project and what its
# tests need (and does nothing else with --install); PYTHON names another
# interpreter than python3. MariaDB, PostgreSQL and RabbitMQ are used where
# they answer on this machine; with CYBORG_TEST_REQUIRE_SERVICES=1 one that
# does not answer is a failure, and so is every test that is skipped.

set -euo pipefail

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

VENV=$PWD/.venv-tests
PYTHON=${PYTHON:-python3}

fail() {
    echo "run_tests.sh: $*" >&2
    exit 1
}

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
    2>/dev/null ||
    fail "$PYTHON is missing or older than Python 3.10; set PYTHON"

if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$PYTHON cannot make virtual environments;" \
            "on Debian and Ubuntu: apt-get install python3-venv"
    [ -w . ] ||
        fail "you may not write in $PWD; take a copy of it where you may"
    echo "Making a virtual environment in .venv-tests ..."
    rm -rf "$VENV"
    "$PYTHON" -m venv "$VENV" ||
        fail "no virtual environment could be made in $VENV"
fi

# Only when what is asked for has changed: a machine without network can then
# run the tests again. The code itself is used from where it lies.
STAMP=$VENV/installed
WANTED=$(cat requirements.txt test-requirements.txt pyproject.toml setup.*)
if [ "$WANTED" != "$(cat "$STAMP" 2>/dev/null)" ]; then
    echo "Installing what the tests need (a minute or two) ..."
    rm -f "$STAMP"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
        --no-input --retries 10 --editable . -r test-requirements.txt ||
        fail "the installation failed (no network?)"
    echo "$WANTED" >"$STAMP"
fi

if [ "${1:-}" = --install ]; then
    exit
fi

if [ $# -eq 0 ]; then
    # More processes than processors: many tests wait for services. The
    # longest files come first, so that none is left to the end.
    cores=$(nproc 2>/dev/null || echo 2)
    set -- -n "${CYBORG_TEST_PROCESSES:-$((cores < 4 ? cores * 2 : 8))}" \
        --dist loadfile --no-loadscope-reorder --durations 25 \
        tests/integration tests/functional tests/unit
fi

# Hundreds of tests start programs of ours, which need not compile anew.
unset PYTHONDONTWRITEBYTECODE

exec "$VENV/bin/python" -m pytest "$@"
