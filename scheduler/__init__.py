"""Who gets which GPU when: problem, plan, fast allocator, formal model, baselines."""
