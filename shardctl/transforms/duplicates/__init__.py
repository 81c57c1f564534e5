"""What in a dataset is a duplicate of something else: images, texts, and their lines or
paragraphs."""
