# SPDX-License-Identifier: Apache-2.0
"""The service of a host: finds its accelerators, reports and programs them.

It never opens the database and never imports what does.
"""
