"""The commands, one module a topic; each has ``register(app)``, and heavy imports stay inside its functions."""
