"""Whether measured times make physical sense, before anyone trusts them. One line per finding; no torch."""
