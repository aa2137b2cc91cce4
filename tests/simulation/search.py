"""Searches every configuration, the large ones too, and prints what was covered."""

from __future__ import annotations

import time

from tests.simulation.configurations import exhaustive, large


def main() -> None:
    states = steps = 0
    for name, configuration in {**exhaustive(), **large()}.items():
        started = time.monotonic()
        report = configuration.explore(most_states=30_000_000)
        states, steps = states + report.states, steps + report.steps
        seconds = time.monotonic() - started
        print(f"{name}: {report.states:,} states, {report.steps:,} steps, {seconds:.0f} s")
    print(f"all hold: {states:,} states, {steps:,} steps")


if __name__ == "__main__":
    main()
