"""The contents of a checkpoint: shards, manifest, digests and signatures, as bytes and values.

Owns the imports of h5py, xxhash and hmac.  Imports no other room.  Must not
touch the disk, except to read the file that holds a key.
"""
