"""What people see: tables, plots, progress bars, and the files that a command was asked for."""
