"""A module that imports another one, which leaves a thread running."""

import leaves_a_thread  # noqa: F401, I001  (first of the two)
import colorsys  # noqa: F401  (nobody else has imported it)
