"""The numbers for OpenTelemetry: names and attributes of its conventions for messaging.

Only its API is used: where they go is for the provider that the application has set up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from sparkwal.errors import OptionError
from sparkwal.metrics.table import Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.metrics import Meter as Instruments

SYSTEM = "sparkwal"
# The conventions' boundaries of messaging.client.operation.duration, and what a store that
# repeats requests adds.
BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0)  # fmt: skip  # noqa: E501
ATTRIBUTES = {
    "log": "messaging.destination.name",
    "sequencer": "messaging.destination.partition.id",
    "consumer": "messaging.consumer.group.name",
    "status": "http.response.status_code",
    "name": "sparkwal.event.name",
}
_UNITS = ("_timestamp_seconds", "_seconds", "_bytes", "_positions", "_position")


def otel_name(metric: Metric) -> str:
    """The convention's name, else one under `sparkwal.` whose unit is not repeated in it."""
    if metric.otel:
        return metric.otel
    if metric.kind == "gauge":
        # Several gauges may differ in their unit alone.
        return f"sparkwal.{metric.name.removesuffix('_bytes')}"
    ending = next((unit for unit in _UNITS if metric.name.endswith(unit)), "")
    return f"sparkwal.{metric.name.removesuffix(ending)}"


class OpenTelemetry:
    """Metrics as instruments of an OpenTelemetry meter, each from its first value on."""

    def __init__(self, meter: Instruments) -> None:
        self._meter = meter
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}
        # Of gauges: an instrument that is set would go on telling of a consumer that is gone.
        self._values: dict[str, dict[tuple[str, ...], float | Callable[[], float]]] = {}

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        self._instrument(metric).add(amount, _attributes(metric, labels))

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        self._instrument(metric).record(value, _attributes(metric, labels))

    def set(self, metric: Metric, value: float | Callable[[], float], *labels: str) -> None:
        self._instrument(metric)
        with self._lock:
            self._values.setdefault(metric.name, {})[labels] = value

    def forget(self, metric: Metric, *labels: str) -> None:
        """A gauge vanishes; what was counted stays, as OpenTelemetry's sums only grow."""
        with self._lock:
            self._values.get(metric.name, {}).pop(labels, None)

    def _instrument(self, metric: Metric) -> Any:
        with self._lock:
            made = self._made.get(metric.name)
            if made is None:
                made = self._made[metric.name] = self._make(metric)
        return made

    def _make(self, metric: Metric) -> Any:
        about = {"name": otel_name(metric), "unit": metric.unit, "description": metric.help}
        if metric.kind == "counter":
            return self._meter.create_counter(**about)
        if metric.kind == "gauge":
            return self._meter.create_observable_gauge(
                callbacks=[lambda options: self._observations(metric, options)], **about
            )
        return self._meter.create_histogram(explicit_bucket_boundaries_advisory=BOUNDARIES, **about)

    def _observations(self, metric: Metric, options: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        with self._lock:
            now = list(self._values.get(metric.name, {}).items())
        return [
            Observation(value() if callable(value) else value, _attributes(metric, labels))
            for labels, value in now
        ]


def _attributes(metric: Metric, labels: tuple[str, ...]) -> dict[str, str | int]:
    found: dict[str, str | int] = {"messaging.system": SYSTEM}
    if metric.otel:
        found["messaging.operation.name"] = found["messaging.operation.type"] = "send"
    for label, value in zip(metric.labels, labels, strict=True):
        found[ATTRIBUTES[label]] = int(value) if label == "status" else value
    return found


# None: the global provider's, which gives another object each time until it is set.
_meters: dict[Instruments | None, OpenTelemetry] = {}


def open_telemetry(meter: Instruments | None = None) -> OpenTelemetry:
    """The meter over one of OpenTelemetry; without one over that of the global provider.

    Raises OptionError where opentelemetry-api is not installed.
    """
    try:
        from opentelemetry.metrics import get_meter
    except ModuleNotFoundError:
        raise OptionError(
            "opentelemetry-api is not installed: pip install 'sparkwal[metrics]'"
        ) from None
    if meter not in _meters:
        _meters[meter] = OpenTelemetry(get_meter("sparkwal") if meter is None else meter)
    return _meters[meter]
