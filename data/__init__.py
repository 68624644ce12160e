"""What happened: job and traffic history, read, validated, and cut at what was known."""
