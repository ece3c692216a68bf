# SPDX-License-Identifier: Apache-2.0
"""What the records of a cloud say against each other, found and healed."""
