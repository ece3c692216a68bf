#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Put this release in the place of the base's: install, change of the
# configuration only what must change, migrate the database, start.

set -o errexit

source "$GRENADE_DIR/grenaderc"
source "$GRENADE_DIR/functions"

source "$TARGET_DEVSTACK_DIR/stackrc"
source "$TARGET_DEVSTACK_DIR/functions"
source "$TARGET_DEVSTACK_DIR/lib/tls"
source "$TARGET_DEVSTACK_DIR/lib/apache"

RUN_DIR=$(readlink -f "$(dirname "$0")")
source "$RUN_DIR/../settings"
source "$RUN_DIR/../lib/cyborg"

# 2 is what the upgrade does not cure; 1 is a warning. Without
# --config-file, as operators call it.
function check_cyborg_upgrade {
    local code=0
    "$CYBORG_BIN_DIR/cyborg-status" upgrade check || code=$?
    if [[ $code -gt 1 ]]; then
        die $LINENO "cyborg-status upgrade check ended with $code"
    fi
}

set -o xtrace

install_cyborg

upgrade_project cyborg "$RUN_DIR" "$BASE_DEVSTACK_BRANCH" \
    "$TARGET_DEVSTACK_BRANCH"

check_cyborg_upgrade
sync_cyborg_database
check_cyborg_upgrade

start_cyborg

ensure_services_started cyborg-api cyborg-cond cyborg-agent
