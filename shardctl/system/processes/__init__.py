"""Child processes that do tasks, and that may die."""
