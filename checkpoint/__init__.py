"""Durable state of a training job: sharded HDF5 that is committed whole or not at all."""
