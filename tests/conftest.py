"""What holds for every test: how long an example takes is no property of the program, on machines that others share."""

from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
