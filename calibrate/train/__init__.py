"""A small model and a smaller draft of it, trained here on a public-domain text, so that there are real weights to look
at where no hub is reachable: ``python -m calibrate.train``."""
