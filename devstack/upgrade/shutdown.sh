#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Stop the base's services; nothing of them may be left.

set -o errexit

source "$GRENADE_DIR/grenaderc"
source "$GRENADE_DIR/functions"

source "$BASE_DEVSTACK_DIR/functions"
source "$BASE_DEVSTACK_DIR/stackrc"
source "$BASE_DEVSTACK_DIR/lib/tls"
source "$BASE_DEVSTACK_DIR/lib/apache"

CYBORG_DEVSTACK_DIR=$(readlink -f "$(dirname "$0")/..")
source "$CYBORG_DEVSTACK_DIR/settings"
source "$CYBORG_DEVSTACK_DIR/lib/cyborg"

set -o xtrace

stop_cyborg

ensure_services_stopped cyborg-api cyborg-cond cyborg-agent
