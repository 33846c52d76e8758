"""The environment in which the processes of a job begin.

Libraries read some variables when they are loaded, and Python reads others when it starts.  So
processes have it from their first moment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.runtime.mpiexec.launch_line import outside_of_mpi

_ONE_THREAD_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def job_environment(threads: int) -> dict[str, str]:
    """Return the environment of all processes of the job.

    Variables of an enclosing MPI job would reach the workers beside those of their own.
    Thread pools of numeric libraries are part of the numerics; hash
    randomisation would make the order of sets differ between workers; plugins
    that HDF5 finds by itself are code from any place that the variable names.
    """
    environment = outside_of_mpi(os.environ)
    environment.pop("HDF5_PLUGIN_PATH", None)
    environment.update(dict.fromkeys(_ONE_THREAD_POOLS, str(threads)))
    environment.setdefault("PYTHONHASHSEED", "0")
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Keras imports pandas where it is installed, and pandas pyarrow, whose jemalloc would begin a
    # thread: nothing that imports it could be warm.
    environment.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    environment["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
    )
    return environment
