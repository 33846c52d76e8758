"""The report of a run as a page: one file of HTML that needs nothing else."""
