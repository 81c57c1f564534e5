"""The object stores by the schemes of their URLs: a new store is a file in stores/, and a line
here."""

from __future__ import annotations

SCHEMES = {"s3": "s3", "gs": "gcs", "az": "azure"}
"""The module of stores/ that opens the URLs of a scheme: connect(bucket, prefix). The extra with
its packages has its name."""
