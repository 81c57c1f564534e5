"""The steps that change images."""
