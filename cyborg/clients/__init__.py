# SPDX-License-Identifier: Apache-2.0
"""The services of the cloud that we call, one module each."""
