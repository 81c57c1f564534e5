"""The steps of text: they clean it, reject what is no use, turn it into tokens, and pack these into
blocks."""
