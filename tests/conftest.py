"""What holds for all tests: nothing is left behind, signals, and how many examples there are.

Property tests look at few examples as unit tests, and at more when there is time.
``pytest -m hypothesis --hypothesis-profile long`` is the long form, a part of ``ci/test``.  The
examples are the same ones every time, so a failure needs no seed to come back.
"""

from __future__ import annotations

import signal

from hypothesis import settings

pytest_plugins = ("leftovers", "run_record")

_SAME_EVERY_TIME = settings(derandomize=True, database=None, deadline=None)

settings.register_profile("unit", _SAME_EVERY_TIME, max_examples=40)
settings.register_profile("long", _SAME_EVERY_TIME, max_examples=300)
settings.load_profile("unit")

# A shell that starts the tests in the background, or nohup, has jobs ignore these two, and a
# job that ignores a signal from the start goes on ignoring it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
