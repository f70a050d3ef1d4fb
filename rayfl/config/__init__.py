"""Configurations: command lines, files and tables of experiments; and how a run describes itself."""
