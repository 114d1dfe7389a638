"""What one does with a trace before replaying it: look at it, check it, cut it, offer more of it, write it anew.

``info`` profiles, ``findings`` checks, ``change`` slices and scales, ``export`` writes our own format.
"""
