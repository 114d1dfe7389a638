"""The largest load that holds every SLO, and what a target rate needs and costs."""
