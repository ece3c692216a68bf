#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Run every test that can run on this machine.
#
#   tools/run_tests.sh [arguments for pytest]
#
# Makes a virtual environment (.venv-tests) with the project and what its
# tests need; PYTHON names another interpreter than python3. MariaDB,
# PostgreSQL and RabbitMQ are used where they answer on this machine; with
# CYBORG_TEST_REQUIRE_SERVICES=1 one that does not answer is a failure.

set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=$PWD/.venv-tests
PYTHON=${PYTHON:-python3}

fail() {
    echo "run_tests.sh: $*" >&2
    exit 1
}

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$PYTHON is missing or older than Python 3.10; set PYTHON"

if ! "$VENV/bin/python" -c '' 2>/dev/null; then
    rm -rf "$VENV"
    "$PYTHON" -m venv "$VENV" ||
        fail "no virtual environment could be made;" \
            "on Debian and Ubuntu: apt-get install python3-venv"
fi

# Installing again costs seconds and follows what changed; a system without
# network may have done it before.
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
    --editable . -r test-requirements.txt

if [ $# -eq 0 ]; then
    set -- -n "${CYBORG_TEST_PROCESSES:-2}" --dist loadfile \
        tests/unit tests/functional tests/integration
fi

exec "$VENV/bin/python" -m pytest "$@"
