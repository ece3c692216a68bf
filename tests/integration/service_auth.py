# SPDX-License-Identifier: Apache-2.0
"""A keystoneauth plugin for `openstack --os-auth-type`: a user's password,
and Nova's service token beside the user's.

Run in the environment of a client, which finds it by the entry point that
`openstack_client.py` writes.  It imports nothing of ours.
"""

from __future__ import annotations

import os
from typing import Any

from keystoneauth1 import service_token
from keystoneauth1.loading._plugins.identity import generic


class Loader(generic.Password):
    """The service is `SERVICE_USERNAME` on `SERVICE_PROJECT_NAME`, with the
    password and in the domain of the user."""

    def load_from_options(self, **options: Any) -> Any:
        service = {
            **options,
            "username": os.environ["SERVICE_USERNAME"],
            "project_name": os.environ["SERVICE_PROJECT_NAME"],
        }
        return service_token.ServiceTokenAuthWrapper(
            user_auth=super().load_from_options(**options),
            service_auth=super().load_from_options(**service),
        )
