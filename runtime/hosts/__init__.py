"""The other hosts of a job: how they are reached, examined and chosen."""
