"""The batch scripts of docs/hpc.md, and a directory in which a user would type them."""

from __future__ import annotations

import re
from pathlib import Path

from workload import EVEN, SCRIPT

_DOCS = Path(__file__).resolve().parents[3] / "docs"
_PAGE = _DOCS / "hpc.md"
HOSTS_PAGE = (_DOCS / "hosts.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", _PAGE.read_text(encoding="utf-8"), re.M | re.S)
JOB_SCRIPT, NODES_SCRIPT, CHAIN_SCRIPT = (block for block in BLOCKS if "#SBATCH" in block)
(CHAIN_COMMANDS,) = (block for block in BLOCKS if "do sbatch" in block)
"""They submit the script of the chain, which is ``chain.sh``."""


def write_train(directory: Path) -> None:
    """Write a small ``train.py``, whose arguments are its own."""
    lines = ["import runpy, sys", f"sys.argv[1:] = {EVEN.argv}"]
    lines.append(f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')")
    (directory / "train.py").write_text("\n".join(lines))
