"""Output for people: tables, plots, progress bars, and the files of commands."""
