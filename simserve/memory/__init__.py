"""What fits a device's memory: bytes of weights under a scheme, bytes of a cached token, tokens and users that remain.

Nothing is imported here: scenarios and profiles read ``schemes`` and ``sizes`` without the rest.
"""
