"""Jobs: the processes that run the cells of tables and the trials of sweeps."""
