"""What commands print of conversions, records, objects, tokens and the shards of other tools."""
