"""simserve: a discrete-event simulator of language-model serving, calibrated from measurements."""

__version__ = "0.1.0"
