"""See warm."""

import shardctl.interop.exports.parquet
import shardctl.interop.exports.webdataset  # noqa: F401
from shardctl.interop.exports.job import handle  # noqa: F401
