"""The version of shardctl, kept here alone."""

__version__ = "0.1.0"
