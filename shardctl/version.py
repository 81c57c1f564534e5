"""The version of shardctl, kept here alone."""

__version__ = "1.0.0rc1"
