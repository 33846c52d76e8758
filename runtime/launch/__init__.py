"""Jobs that a Python program starts: ``holdfast.launch``, and the files that ``init`` writes.

The command line stands above this package, training below it.
"""
