#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Everything on one machine, from nothing but Python 3.10 or newer.
#
#   tools/quickstart.sh [--exit]
#
# Makes a virtual environment (.venv-quickstart), installs the service with a
# real Placement, starts both, and walks through the life of an accelerator.
# It stays up until Ctrl-C; --exit ends after the walk, and the exit code says
# whether every step went as it should. PYTHON names another interpreter.

set -euo pipefail

usage="usage: tools/quickstart.sh [--exit]"

fail() {
    echo "quickstart.sh: $*" >&2
    exit 1
}

trap 'fail "stopped; the next start goes on from the beginning"' INT TERM

walk_arguments=()
for argument in "$@"; do
    case $argument in
    --exit) walk_arguments+=(--exit) ;;
    -h | --help)
        echo "$usage"
        exit 0
        ;;
    *) fail "$argument is not known; $usage" ;;
    esac
done

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
top=$PWD
venv=$top/.venv-quickstart
stamp=$venv/installed
log=$venv/pip.log

# What an environment of the caller's would mix into ours.
unset PYTHONHOME PYTHONPATH PIP_REQUIRE_VIRTUALENV PIP_TARGET PIP_USER

# How this user becomes root, for the commands that we suggest.
as_root="sudo "
if [ "$(id -u)" -eq 0 ]; then
    as_root=""
fi

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

find_python() {
    local name
    if [ -n "${PYTHON:-}" ]; then
        is_new_enough "$PYTHON" ||
            fail "PYTHON=$PYTHON is missing or older than Python 3.10"
        echo "$PYTHON"
        return
    fi
    for name in python3 python3.13 python3.12 python3.11 python3.10; do
        if is_new_enough "$name"; then
            echo "$name"
            return
        fi
    done
    fail "Python 3.10 or newer is needed; on Debian and Ubuntu:" \
        "${as_root}apt-get install python3 python3-venv"
}

make_venv() {
    local python=$1 package=python3-venv version
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        # Debian's package for another Python than its own python3.
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        if [ "$python" != python3 ]; then
            package=python$version-venv
        fi
        fail "$python cannot make virtual environments;" \
            "on Debian and Ubuntu: ${as_root}apt-get install $package"
    fi
    [ -w "$top" ] ||
        fail "you may not write in $top; take a copy of it where you may"
    echo "Making a virtual environment in .venv-quickstart ..."
    rm -rf "$venv"
    "$python" -m venv "$venv" ||
        fail "no virtual environment could be made in $venv"
}

is_usable() {
    is_new_enough "$venv/bin/python" &&
        "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

is_installed() {
    local newer
    [ -e "$stamp" ] || return 1
    newer=$(find cyborg requirements.txt setup.cfg setup.py pyproject.toml \
        -type f -newer "$stamp" ! -name '*.pyc' -print -quit)
    [ -z "$newer" ]
}

# A line for each package, so that somebody who waits sees that it goes on.
progress() {
    sed -u -n \
        -e 's/^Collecting \([^ ]*\).*/  fetching \1/p' \
        -e 's/^ *Building wheel for \([^ ]*\).*started.*/  building \1/p' \
        -e 's/^Installing collected packages.*/  installing what was fetched/p'
}

install() {
    echo "Installing the service and what it needs (a minute or two) ..."
    # What an earlier build left would come along, were it gone since.
    rm -rf "$stamp" build/lib build/bdist.*
    # The version of a tree is git's business, and there may be no git.
    if ! PBR_VERSION=${PBR_VERSION:-0.0.0} SKIP_GENERATE_AUTHORS=1 \
        SKIP_WRITE_GIT_CHANGELOG=1 PYTHONUNBUFFERED=1 \
        "$venv/bin/python" -m pip install --disable-pip-version-check \
        --no-input --progress-bar off --upgrade ".[standalone]" \
        2>&1 | tee "$log" | progress; then
        tail -n 20 "$log" >&2
        fail "the installation failed (no network?); all of it is in $log"
    fi
    rm -rf build/lib build/bdist.*
    rmdir build 2>/dev/null || true
    touch "$stamp"
}

# Assigned in its own line, so that a failure inside ends us.
python=$(find_python)
is_usable || make_venv "$python"
is_installed || install

exec "$venv/bin/python" "$top/tools/quickstart_walk.py" "${walk_arguments[@]}"
