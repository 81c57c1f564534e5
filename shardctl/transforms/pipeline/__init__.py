"""What a recipe does to records: one at a time, or a whole Arrow batch at once."""
