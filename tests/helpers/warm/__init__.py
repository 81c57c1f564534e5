"""The workers of shardctl, with what they import when they first need it loaded before they are
forked: servers are kept (kept_servers.py), and it took each worker of a test 0.1 to 0.2 s."""

WARM = {
    "shardctl.inspection.verify.worker": "warm.checks",
    "shardctl.interop.exports.job": "warm.exports",
    "shardctl.making.shards.task": "warm.shards",
}
"""What is loaded in the place of a module of workers."""
