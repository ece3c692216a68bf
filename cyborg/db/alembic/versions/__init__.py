# SPDX-License-Identifier: Apache-2.0
"""The revisions, the oldest first in `down_revision`."""
