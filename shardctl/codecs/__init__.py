"""Images as bytes, and back: the only place that knows an imaging library."""
