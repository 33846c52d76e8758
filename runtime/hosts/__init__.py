"""The other hosts of a job: how their agents are reached, asked, watched, lost and back."""
