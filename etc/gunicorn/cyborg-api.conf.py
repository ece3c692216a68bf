# SPDX-License-Identifier: Apache-2.0
"""gunicorn --config cyborg-api.conf.py cyborg.wsgi.api:application."""

# A proxy before it must set X-Forwarded-For, or else [metrics]
# allowed_networks must not have 127.0.0.0/8: /metrics would be everybody's.
bind = "127.0.0.1:6666"
workers = 4
threads = 16
worker_class = "gthread"
raw_env = ["OS_CYBORG_CONFIG_FILES=/etc/cyborg/cyborg.conf"]

# A broker's and a database's connection must not be shared by processes.
preload_app = False
# Longer than [DEFAULT] rpc_response_timeout, or a slow host ends a worker.
timeout = 90
# SIGTERM: requests that run may take so long.
graceful_timeout = 5
limit_request_field_size = 65535
# For TLS without a web server before it: certfile and keyfile.
