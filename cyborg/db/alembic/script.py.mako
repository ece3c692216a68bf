# SPDX-License-Identifier: Apache-2.0
"""${message}"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from cyborg.db.alembic import steps
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    # MariaDB cannot roll back: use the functions of `steps`, which look
    # before they add, so that a killed upgrade can be run again.
    ${upgrades if upgrades else "raise NotImplementedError"}
