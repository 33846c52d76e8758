"""The custom replica of the examples, on workers that are told on which host each of them lives.

All of them live on this machine.  Each says in a file which of its saves it has copied.
"""

from __future__ import annotations

import dataclasses

from examples import flags_of_workload, load, train
from holdfast.checkpoint.tensor import Tensors
from holdfast.runtime.saving.agent_saver import AgentSaver, PendingSave
from holdfast.runtime.saving.plan import SaveRequest
from holdfast.runtime.worker import context as context_module

example = load("02_custom_replica")
parser = flags_of_workload()
parser.add_argument("--on", required=True)
options = parser.parse_args()

told = context_module.current()
config = dataclasses.replace(told.config, hosts=tuple(options.on))
context_module.install(dataclasses.replace(told, config=config))
begin = AgentSaver.begin


def noting_begin(saver: AgentSaver, request: SaveRequest, state: Tensors) -> PendingSave:
    """Copy a part, and say so."""
    with (config.options.run_dir / f"copied-by-{config.worker}").open("a") as file:
        file.write(f"{request.ticket.step} {request.part}/{request.ticket.parts}\n")
    return begin(saver, request, state)


AgentSaver.begin = noting_begin  # type: ignore[method-assign]
train(example, lambda: example.SoftmaxRegression(options.features, 10), options)
