"""Step times that others measured, turned into profiles. Nothing here imports torch.

Each format has a module that reads files into a ``Reading``; ``assemble.import_profile`` fits it and makes the profile.
"""
