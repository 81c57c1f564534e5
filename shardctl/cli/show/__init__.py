"""What commands print of records, objects, tokens and the shards of other tools."""
