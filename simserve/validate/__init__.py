"""A simulation held against a real run of the same requests: errors by metric, with the real one's own noise beside."""
