"""See warm."""

import numpy.ma  # noqa: F401 - pa.array imports it
import pyarrow.compute  # noqa: F401

import shardctl.images.codecs.image  # noqa: F401
from shardctl.inspection.verify.worker import handle  # noqa: F401
