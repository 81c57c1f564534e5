"""Pages to look at: each one file that needs nothing else, no network, light or dark as its reader likes it."""

from shardctl.report.bench import bench_page
from shardctl.report.dataset import dataset_page

__all__ = ["bench_page", "dataset_page"]
