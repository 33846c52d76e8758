"""``python -m holdfast``: the same as ``holdfast``, where that is not in ``PATH``."""

from holdfast.runtime.commands.main import main

main()
