"""Weights really rounded: the arithmetic, what it does to each matrix and to a trained model's answers, and the kernels
that torch has for it."""
