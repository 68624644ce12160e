"""A live Slurm: what its commands say, and what may be handed over to it."""
