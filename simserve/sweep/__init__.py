"""Many simulations of one scenario: tasks, what is measured of each, where they run, and what is kept of them."""
