"""OpenTelemetry: spans for put, reserve, work and ack of one queue, and all metrics of queues.

>>> from mpqueue import otel  # doctest: +SKIP
>>> traced = otel.Traced(q)  # doctest: +SKIP
>>> traced.put(b"hello")  # doctest: +SKIP
>>> item = traced.reserve(consumer)  # doctest: +SKIP
>>> with traced.process(item):  # doctest: +SKIP
...     work(item.body)

The trace context travels in the item's headers, so that the consumer's work is part of the trace
of the put, in whatever process and whenever it is done. Needs the API only (extra `otel`); without
an SDK that is set up, nothing is recorded and the queue works as ever.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

import mpqueue
from mpqueue import metrics
from mpqueue.stats import Histogram

try:
    from opentelemetry import metrics as api_metrics
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
except ImportError as error:
    raise ImportError("mpqueue.otel needs the OpenTelemetry API: install mpqueue[otel]") from error

__all__ = ["Traced", "extract", "inject", "observe"]

SYSTEM = "mpqueue"
DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Advised bounds of the two histograms, seconds."""

Attributes = dict[str, str | int]


def inject(headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """A new dict of `headers` and the trace context that is current here, for `put(headers=)`."""
    carrier = dict(headers or {})
    propagate.inject(carrier)
    return carrier


def extract(item: mpqueue.Item) -> Context:
    """The context of the put that made `item`; an empty one when it carries none."""
    return propagate.extract(item.headers, context=Context())


class Traced:
    """Puts into and takes out of one queue with spans and messaging metrics around each call.

    It wraps a handle and owns nothing: closing it, and every call that is not here, is the
    handle's. Threads may share it.
    """

    def __init__(
        self,
        queue: mpqueue.Queue,
        *,
        name: str | None = None,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: api_metrics.MeterProvider | None = None,
    ) -> None:
        """name: what the queue is called in spans and metrics; its absolute path unless given.

        The providers are the global ones unless given.
        """
        self.queue = queue
        self.name = metrics.label(queue.path) if name is None else name
        self._tracer = trace.get_tracer("mpqueue", str(mpqueue.__version__), tracer_provider)
        meter = api_metrics.get_meter("mpqueue", str(mpqueue.__version__), meter_provider)
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Duration of a call that puts, reserves or settles.",
            explicit_bucket_boundaries_advisory=DURATIONS,
        )
        self._work = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of the work on an item.",
            explicit_bucket_boundaries_advisory=DURATIONS,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", unit="{message}", description="Items put."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", unit="{message}", description="Items reserved."
        )

    def put(
        self,
        item: Any,
        block: bool = True,
        timeout: float | None = None,
        *,
        on_full: Literal["raise", "drop"] = "raise",
        headers: Mapping[str, str] | None = None,
    ) -> int | None:
        """`Queue.put` in a span `send NAME`, whose context the item carries. Raises as it does."""
        with self._call("put", "send", trace.SpanKind.PRODUCER, self._sent) as (span, attributes):
            seq: int | None = self.queue.put(
                item, block, timeout, on_full=on_full, headers=inject(headers)
            )
            if seq is None:
                attributes["error.type"] = "Full"
            if span.is_recording():
                if seq is not None:
                    epoch = self.queue.stats().epoch
                    span.set_attribute("messaging.message.id", f"{self.queue.uuid}:{epoch}:{seq}")
                if isinstance(item, bytes | bytearray | memoryview):
                    span.set_attribute("messaging.message.body.size", memoryview(item).nbytes)
        return seq

    @overload
    def reserve(self, consumer: mpqueue.Consumer, timeout: None = None) -> mpqueue.Item: ...
    @overload
    def reserve(self, consumer: mpqueue.Consumer, timeout: float | None) -> mpqueue.Item | None: ...
    def reserve(
        self, consumer: mpqueue.Consumer, timeout: float | None = None
    ) -> mpqueue.Item | None:
        """`Consumer.reserve` in a span `receive NAME` with a link to the put.

        There is no span when nothing came. Raises as it does.
        """
        items = self._received(lambda: [consumer.reserve(timeout)], batch=False)
        return items[0] if items else None

    def reserve_many(
        self,
        consumer: mpqueue.Consumer,
        n: int,
        *,
        max_bytes: int | None = None,
        linger: float = 0,
        timeout: float | None = None,
    ) -> list[mpqueue.Item]:
        """`Consumer.reserve_many` in one span with a link to the put of each item."""
        return self._received(
            lambda: consumer.reserve_many(n, max_bytes=max_bytes, linger=linger, timeout=timeout),
            batch=True,
        )

    @contextlib.contextmanager
    def process(self, item: mpqueue.Item) -> Iterator[trace.Span]:
        """A block of work on an item, as `with item:`: acked at its end, nacked on an exception.

        Its span `process NAME` is a child of the span of the put, in the same trace, with links to
        that and to the span that is current here. The ack or nack has a span of its own in it.
        """
        attributes = self._attributes("process", "process")
        with self._tracer.start_as_current_span(
            f"process {self.name}",
            context=extract(item),
            kind=trace.SpanKind.CONSUMER,
            attributes={**attributes, **_of_item(item)},
            links=[*_links(extract(item)), *_links(None)],
        ) as span:
            begun = time.perf_counter()
            try:
                yield span
            except BaseException as error:
                attributes["error.type"] = _type(error)
                span.set_attribute("error.type", _type(error))
                self._leave(item, error)
                raise
            finally:
                self._work.record(time.perf_counter() - begun, attributes)
            self._leave(item, None)

    def ack(self, item: mpqueue.Item, durable: bool = False) -> None:
        """`Item.ack` in a span `settle NAME`. Raises as it does."""
        self._settle("ack", item, lambda: item.ack(durable))

    def nack(self, item: mpqueue.Item) -> None:
        """`Item.nack` in a span `settle NAME`. Raises as it does."""
        self._settle("nack", item, item.nack)

    # ---- inside

    def _leave(self, item: mpqueue.Item, error: BaseException | None) -> None:
        """The end of a `with item:` block; no span when the item was settled in it."""
        if item.settled:
            return
        if error is None:
            self._settle("ack", item, lambda: item.__exit__(None, None, None))
        else:
            self._settle(
                "nack", item, lambda: item.__exit__(type(error), error, error.__traceback__)
            )

    def _settle(self, name: str, item: mpqueue.Item, act: Callable[[], object]) -> None:
        with self._call(name, "settle", trace.SpanKind.CLIENT) as (span, _):
            span.set_attributes(_of_item(item))
            act()

    def _received(
        self, act: Callable[[], Sequence[mpqueue.Item | None]], batch: bool
    ) -> list[mpqueue.Item]:
        attributes = self._attributes("reserve", "receive")
        started, begun = time.time_ns(), time.perf_counter()
        failed: BaseException | None = None
        items: list[mpqueue.Item] = []
        try:
            items += [item for item in act() if item is not None]
        except mpqueue.Sealed:
            raise
        except BaseException as error:
            failed = error
            attributes["error.type"] = _type(error)
            raise
        finally:
            if items or failed is not None:
                self._duration.record(time.perf_counter() - begun, attributes)
                self._receive_span(items, batch, attributes, started, failed)
        if items:
            self._consumed.add(len(items), attributes)
        return items

    def _receive_span(
        self,
        items: list[mpqueue.Item],
        batch: bool,
        attributes: Attributes,
        started: int,
        failed: BaseException | None,
    ) -> None:
        """Made when the call is over, for only then is it known whether anything came."""
        details: Attributes = {"messaging.batch.message_count": len(items)} if batch else {}
        if items and not batch:
            details = _of_item(items[0])
        span = self._tracer.start_span(
            f"receive {self.name}",
            kind=trace.SpanKind.CLIENT,
            attributes={**attributes, **details},
            links=[link for item in items for link in _links(extract(item))],
            start_time=started,
        )
        if failed is not None:
            _fail(span, failed)
        span.end()

    @contextlib.contextmanager
    def _call(
        self,
        name: str,
        kind: str,
        span_kind: trace.SpanKind,
        counter: api_metrics.Counter | None = None,
    ) -> Iterator[tuple[trace.Span, Attributes]]:
        """A span around a call, and its duration; an error.type put into the attributes is told."""
        attributes = self._attributes(name, kind)
        with self._tracer.start_as_current_span(
            f"{kind} {self.name}",
            kind=span_kind,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            begun = time.perf_counter()
            try:
                yield span, attributes
                if "error.type" in attributes:
                    span.set_attribute("error.type", attributes["error.type"])
            except BaseException as error:
                attributes["error.type"] = _type(error)
                _fail(span, error)
                raise
            finally:
                self._duration.record(time.perf_counter() - begun, attributes)
                if counter is not None:
                    counter.add(1, attributes)

    def _attributes(self, name: str, kind: str) -> Attributes:
        return {
            "messaging.system": SYSTEM,
            "messaging.destination.name": self.name,
            "messaging.operation.name": name,
            "messaging.operation.type": kind,
        }


def _of_item(item: mpqueue.Item) -> Attributes:
    return {
        "messaging.message.id": item.id,
        "messaging.message.body.size": memoryview(item.body).nbytes,
    }


def _links(context: Context | None) -> list[trace.Link]:
    """A link to the span of that context (None: the current one), where it has one."""
    found = trace.get_current_span(context).get_span_context()
    return [trace.Link(found)] if found.is_valid else []


def _type(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _fail(span: trace.Span, error: BaseException) -> None:
    span.set_attribute("error.type", _type(error))
    span.record_exception(error)
    span.set_status(trace.StatusCode.ERROR, str(error))


# ---- numbers ------------------------------------------------------------------------------------


def observe(
    *paths: metrics.StrPath,
    meter_provider: api_metrics.MeterProvider | None = None,
    report: metrics.Report | None = None,
) -> None:
    """Registers what `mpqueue.metrics` counts and measures as observable instruments.

    `mpqueue_items_acked_total` is the counter `mpqueue.items_acked`, and so on; the histogram of
    flushes is two counters, `mpqueue.sync_duration.count` and `mpqueue.sync_duration.sum`. Each has
    the attribute messaging.destination.name, the absolute path. One process of all that share the
    queues is enough. Call it once; instruments live as long as their provider. `report` is called
    with each queue that cannot be read, at each collection. Raises ValueError without a path.
    """
    if not paths:
        raise ValueError("observe shows at least one queue: observe(path)")
    meter = api_metrics.get_meter("mpqueue", str(mpqueue.__version__), meter_provider)
    rounds = _Rounds([os.path.abspath(os.fsdecode(path)) for path in paths], report)
    for family in metrics.FAMILIES:
        name = f"mpqueue.{family.field}"
        if family.kind == "counter":
            meter.create_observable_counter(
                name, [rounds.callback(family.field)], _unit(family), family.help
            )
        elif family.kind == "gauge":
            meter.create_observable_gauge(
                name, [rounds.callback(family.field)], _unit(family), family.help
            )
        elif family.kind == "histogram":
            name = name.removesuffix("_seconds")
            meter.create_observable_counter(
                f"{name}.count", [rounds.callback(family.field, "count")], "{flush}", "Flushes."
            )
            meter.create_observable_counter(
                f"{name}.sum", [rounds.callback(family.field, "sum")], "s", family.help
            )


def _unit(family: metrics.Family) -> str:
    words = family.field.split("_")
    return next(
        (
            unit
            for word, unit in (("seconds", "s"), ("bytes", "By"), ("items", "{item}"))
            if word in words
        ),
        "1",
    )


class _Rounds:
    """Readings that all instruments of one collection share: each instrument uses one once."""

    def __init__(self, paths: list[str], report: metrics.Report | None) -> None:
        self._paths = paths
        self._report = report
        self._lock = threading.Lock()
        self._used: set[str] = set()
        self._readings: list[metrics.Reading] = []

    def callback(
        self, field: str, part: str = ""
    ) -> Callable[[api_metrics.CallbackOptions], Iterable[api_metrics.Observation]]:
        """What an instrument calls at each collection."""

        def observations(_: api_metrics.CallbackOptions) -> Iterator[api_metrics.Observation]:
            for reading in self._of(field + part):
                value = reading.values.get(field)
                if isinstance(value, Histogram):
                    value = getattr(value, part)
                if isinstance(value, int | float):
                    number = int(value) if isinstance(value, bool) else value
                    yield api_metrics.Observation(
                        number,
                        {"messaging.system": SYSTEM, "messaging.destination.name": reading.queue},
                    )

        return observations

    def _of(self, user: str) -> list[metrics.Reading]:
        with self._lock:
            if user in self._used or not self._used:
                self._used.clear()
                self._readings = metrics.read_all(self._paths, self._report)
            self._used.add(user)
            return self._readings
