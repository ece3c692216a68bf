#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What devstack calls in each of its phases. Sourced in stack.sh's own shell:
# what it does not know it leaves alone, and it neither exits nor returns.

_XTRACE_CYBORG_PLUGIN=$(set +o | grep xtrace)
set +o xtrace

source "$CYBORG_DIR/devstack/lib/cyborg"

# What each phase is made of, in order.
case "${1:-} ${2:-}" in
    "stack pre-install")
        _CYBORG_STEPS=(check_cyborg_surroundings fetch_cyborgclient)
        ;;
    "stack install")
        _CYBORG_STEPS=(install_cyborg install_cyborgclient)
        ;;
    "stack post-config")
        _CYBORG_STEPS=(configure_cyborg create_cyborg_accounts)
        ;;
    "stack extra")
        _CYBORG_STEPS=(init_cyborg start_cyborg)
        ;;
    "stack test-config")
        _CYBORG_STEPS=(configure_tempest_for_cyborg)
        ;;
    "unstack ")
        _CYBORG_STEPS=(stop_cyborg)
        ;;
    "clean ")
        _CYBORG_STEPS=(cleanup_cyborg)
        ;;
    *)
        _CYBORG_STEPS=()
        ;;
esac
for _CYBORG_STEP in "${_CYBORG_STEPS[@]}"; do
    if is_service_enabled cyborg cyborg-api cyborg-cond cyborg-agent; then
        echo_summary "Cyborg: ${_CYBORG_STEP//_/ }"
        $_CYBORG_STEP
    fi
done

$_XTRACE_CYBORG_PLUGIN
