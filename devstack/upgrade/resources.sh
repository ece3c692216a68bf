#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Resources that must survive the upgrade: a device profile, and an
# accelerator request made from it.

set -o errexit

source "$GRENADE_DIR/grenaderc"
source "$GRENADE_DIR/functions"
source "$TOP_DIR/openrc" admin admin

set -o xtrace

CYBORG_GRENADE_PROFILE=grenade-fpga

function create {
    local profile arq
    profile=$(openstack accelerator device profile create \
        "$CYBORG_GRENADE_PROFILE" \
        '[{"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}]' \
        -f value -c uuid)
    resource_save cyborg profile "$profile"
    arq=$(openstack accelerator arq create "$CYBORG_GRENADE_PROFILE" \
        -f value -c uuid)
    resource_save cyborg arq "$arq"
}

# The API is as it was: what was made is there, and devices are reported.
function verify {
    openstack accelerator device profile show \
        "$(resource_get cyborg profile)"
    openstack accelerator arq show "$(resource_get cyborg arq)"
    openstack accelerator device list
}

# Without the API there is nobody to ask; devices of guests need none.
function verify_noapi {
    :
}

function destroy {
    openstack accelerator arq delete "$(resource_get cyborg arq)"
    openstack accelerator device profile delete \
        "$(resource_get cyborg profile)"
}

# As far as there is anything.
function force_destroy {
    destroy || :
}

case "$1" in
    early_create)
        ;;
    create | verify_noapi | verify | destroy | force_destroy)
        "$1"
        ;;
    *)
        die $LINENO "resources.sh: unknown phase $1"
        ;;
esac
