"""What dask loads in each worker of ``--cluster local``, by the module's name."""

from __future__ import annotations

import logging
import os
from typing import Any

from simserve.tasks.processes import leave_interrupts_to_parent
from simserve.tasks.task import code_revision, same_checkout

_REVISION = "SIMSERVE_CODE_REVISION"


def worker_options() -> dict[str, Any]:
    """What to start a worker of this machine with, so that it is a child of this process like any other."""
    return {"preload": __name__, "env": {_REVISION: code_revision() or ""}}


def dask_setup(worker: object) -> None:
    """Ctrl-C reaches every process of a terminal: a worker that died of it would be mourned with a traceback."""
    leave_interrupts_to_parent()
    same_checkout(os.environ[_REVISION] or None)
    logging.getLogger("distributed.worker.state_machine").setLevel(
        logging.ERROR
    )  # warns of each call that is cancelled
