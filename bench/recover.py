"""From the kill of a worker to the next applied step, on 4 workers, in place.

    python bench/recover.py [--jobs 5] [--model numpy digits]

Each job loses three workers one after the other, rank 0 among them.  The time comes from
the journal.  It begins with the victim's last record, written right before it kills
itself.  It ends with the record of the next applied step, which a survivor writes.
There is no peer: the bound is 100 ms and the time of one step.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import harness

from holdfast.testing import JobRequest

WORKERS = 4
BOUND_MS = 100.0
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MODELS = {
    "numpy": (EXAMPLES / "02_custom_replica.py", ("--epochs", "12")),
    "digits": (EXAMPLES / "01_digits.py", ("--epochs", "12", "--save-every", "1000")),
}
KILLS = ("kill worker=2 step=30", "kill worker=0 step=60", "kill worker=3 step=90")


def main() -> None:
    options = _options()
    harness.print_heading("kill to next applied step")
    for model in options.model:
        spans, steps, repairs = [], [], []
        for _ in range(options.jobs):
            journal = _run(model)
            steps.append(_median_step_ms(journal))
            spans += _recoveries_ms(journal)
            repairs += [r["agreed_ms"] for r in journal if r["event"] == "recovery"]
        print(f"{model}: {_describe(spans, repairs, statistics.median(steps))}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    return parser.parse_args()


def _run(model: str) -> list[harness.Record]:
    script, argv = MODELS[model]
    with harness.private_directory() as directory:
        request = JobRequest(
            script=script,
            run_dir=directory / "run",
            workers=WORKERS,
            microbatches=WORKERS,
            faults=KILLS,
            argv=argv,
            options=("--threads", "1", "--regrow", "never"),
        )
        return harness.run_job(request)


def _recoveries_ms(journal: list[harness.Record]) -> list[float]:
    """Return the milliseconds from each kill to the next applied step."""
    spans = []
    for fault in (record for record in journal if record["event"] == "fault"):
        applied = next(
            record["now"]
            for record in journal
            if record["event"] == "step" and record["step"] >= fault["step"]
        )
        spans.append((applied - fault["now"]) * 1000)
    return spans


def _median_step_ms(journal: list[harness.Record]) -> float:
    steps = [record["seconds"] for record in journal if record["event"] == "step"]
    return float(statistics.median(steps) * 1000)


def _describe(spans: list[float], repairs: list[float], step_ms: float) -> str:
    bound = BOUND_MS + step_ms
    spread = harness.Spread.of(spans)
    within = sum(span <= bound for span in spans)
    return (
        f"{spread.text(0)} ms over {len(spans)} kills, of which detected to agreed "
        f"{harness.Spread.of(repairs).text(1)} ms; a step takes {step_ms:.1f} ms; bound "
        f"{bound:.0f} ms: {harness.verdict(holds=spread.median <= bound)} "
        f"({within} of {len(spans)} within)"
    )


if __name__ == "__main__":
    main()
