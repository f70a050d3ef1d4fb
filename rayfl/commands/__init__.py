"""The commands: what each takes, and how it calls what does the work. Thin: none computes a number."""
