"""``python -m holdfast``: the same as ``holdfast``, where that is not in ``PATH``."""

from holdfast.runtime.cli.main import main

main()
