"""The formal model: the problem written out in CP-SAT, a proven bound, and the mode that improves to it."""
