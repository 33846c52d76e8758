"""The first file that Python runs on another host: it runs the module that its argument names.

``python -m`` and ``python -c`` would look for modules in the working directory first, which is the
user's home over ssh.  A program that is named by its path has nothing but plain words in its
command.  This file loads nothing of holdfast, so an installation that is missing there is missing
by name.
"""

import runpy
import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
