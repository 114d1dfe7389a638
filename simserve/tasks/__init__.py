"""What every study of many runs is made of: tasks, who runs them, what is kept of them, and intervals over them."""
