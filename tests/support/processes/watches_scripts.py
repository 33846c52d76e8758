"""Runs scripts under the watch of a worker, one after the other; prints what each has told."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from configs import worker_config

from holdfast.runtime.worker.script_watch import ScriptWatch


class Told:
    """Keeps the last record."""

    fields: dict[str, Any]

    def record(self, event: str, **fields: Any) -> None:
        self.fields = {"event": event, **fields}


# A worker has no module of a test, and its __main__ is the script.
del sys.modules["configs"], sys.modules["__main__"].__file__

for name in sys.argv[1:]:
    script = Path(name).resolve()
    os.chdir(script.parent)
    config = worker_config(script=script, run_dir=script.parent / "run")
    watch = ScriptWatch(config)
    runpy.run_path(str(script), run_name="__main__")
    told = Told()
    watch.tell(told)
    print(json.dumps(told.fields), flush=True)
