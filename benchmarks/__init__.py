# SPDX-License-Identifier: Apache-2.0
"""How fast the service is on a full database; see README.rst."""
