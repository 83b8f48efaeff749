"""On the path of every process of a test run: plants the fault that PLANTED_FAULT names, before anything else begins."""

import os

from verification.mutation.faults import FAULTS
from verification.mutation.planting import plant

if name := os.environ.get("PLANTED_FAULT"):
    plant(FAULTS[name], setattr)
