"""Sessions of a trace: which requests belong to one conversation, and which of them wait for the answer before."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simserve.request import IntColumn
from simserve.workload.columns import Column

NO_SESSION = -1


def session_numbers(column: Column) -> IntColumn:
    """Sessions numbered from 0 in order of first appearance, whatever they are called; NO_SESSION for an empty cell."""
    names = column.text()
    numbers, _ = pd.factorize(names.mask(names == ""), use_na_sentinel=True)
    return np.asarray(numbers, np.int64)
