"""The resident service: the loop, its API and its page; see ``docs/service.md``."""
