"""Goal: one trace from put to ack across processes, and numbers that are those of the queue.

Method: the OpenTelemetry SDK with in-memory exporters, providers of each test's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import mpqueue
from conftest import OpenQueue, RunPython
from mpqueue import metrics, otel


class Told:
    """Providers, and what was told to them."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    def spans(self) -> list[ReadableSpan]:
        """Those that ended since the last time, in the order in which they ended."""
        found = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return found

    def points(self) -> dict[str, list[Any]]:
        """Data points by metric name."""
        data = self.reader.get_metrics_data()
        return {
            metric.name: list(metric.data.data_points)
            for resource in (data.resource_metrics if data is not None else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def told() -> Iterator[Told]:
    told = Told()
    yield told
    told.tracers.shutdown()
    told.meters.shutdown()


@pytest.fixture
def q(open_queue: OpenQueue) -> mpqueue.Queue:
    return open_queue(capacity=100)


@pytest.fixture
def traced(q: mpqueue.Queue, told: Told) -> otel.Traced:
    return otel.Traced(q, tracer_provider=told.tracers, meter_provider=told.meters)


def attributes(name: str, kind: str, path: Path, **more: object) -> dict[str, object]:
    return {
        "messaging.system": "mpqueue",
        "messaging.destination.name": str(path),
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        **{key.replace("__", "."): value for key, value in more.items()},
    }


def test_one_trace_from_put_to_ack(
    traced: otel.Traced, q: mpqueue.Queue, spool: Path, told: Told
) -> None:
    with told.tracers.get_tracer("test").start_as_current_span("request") as request:
        seq = traced.put(b"hello", headers={"own": "header"})
    assert seq == 1
    with q.consumer() as c:
        item = traced.reserve(c, timeout=10)
        assert item is not None
        assert item.headers["own"] == "header"
        with traced.process(item) as span:
            assert trace.get_current_span() is span
            told.tracers.get_tracer("test").start_span("inside").end()
        assert item.settled
        assert traced.reserve(c, timeout=0) is None  # makes no span
    assert len(q) == 0
    send, _, receive, inside, settle, process = told.spans()
    message = {"messaging__message__id": item.id, "messaging__message__body__size": 5}
    assert [
        (s.name, s.kind, dict(s.attributes or {})) for s in (send, receive, settle, process)
    ] == [
        (f"send {spool}", SpanKind.PRODUCER, attributes("put", "send", spool, **message)),
        (f"receive {spool}", SpanKind.CLIENT, attributes("reserve", "receive", spool, **message)),
        (f"settle {spool}", SpanKind.CLIENT, attributes("ack", "settle", spool, **message)),
        (
            f"process {spool}",
            SpanKind.CONSUMER,
            attributes("process", "process", spool, **message),
        ),
    ]
    assert send.parent == request.get_span_context()
    assert process.parent is not None
    assert process.parent.span_id == send.context.span_id
    assert process.context.trace_id == request.get_span_context().trace_id
    for span in (inside, settle):
        assert span.parent == process.context
    for span in (receive, process):
        assert [link.context.span_id for link in span.links] == [send.context.span_id]
    assert receive.parent is None


def test_the_context_crosses_processes_and_survives_redelivery(
    traced: otel.Traced, q: mpqueue.Queue, spool: Path, told: Told, run_python: RunPython
) -> None:
    code = """
        import sys
        import mpqueue
        from mpqueue import otel
        from opentelemetry.sdk.trace import TracerProvider
        tracer = TracerProvider().get_tracer("other")
        with mpqueue.Queue(sys.argv[1]) as q, tracer.start_as_current_span("other") as span:
            q.put(b"by hand", headers=otel.inject())
            print(format(span.get_span_context().trace_id, "x"))
    """
    number = int(run_python(code, spool), 16)
    with q.consumer() as c:
        for attempt in (1, 2):
            item = traced.reserve(c, timeout=10)
            assert item is not None
            assert item.attempts == attempt
            with pytest.raises(RuntimeError, match="work"), traced.process(item):
                raise RuntimeError("work failed")
            *_, settle, process = told.spans()
            assert settle.context.trace_id == process.context.trace_id == number
            assert (settle.attributes or {})["messaging.operation.name"] == "nack"
            assert process.status.status_code is StatusCode.ERROR
            assert (process.attributes or {})["error.type"] == "RuntimeError"
            assert settle.status.status_code is StatusCode.UNSET
        assert len(q) == 1


def test_items_without_context_begin_a_trace(
    traced: otel.Traced, q: mpqueue.Queue, told: Told
) -> None:
    q.put_many([b"a", b"b"])
    q.put(b"c", headers={"traceparent": "nonsense"})
    with q.consumer() as c, told.tracers.get_tracer("test").start_as_current_span("loop") as loop:
        items = traced.reserve_many(c, 10)
        assert [item.body for item in items] == [b"a", b"b", b"c"]
        for item in items:
            with traced.process(item):
                pass
    spans = told.spans()
    (receive,) = (span for span in spans if span.name.startswith("receive"))
    assert (receive.attributes or {})["messaging.batch.message_count"] == 3
    assert receive.links == ()
    works = [span for span in spans if span.name.startswith("process")]
    assert len({span.context.trace_id for span in works}) == 3
    for span in works:
        assert span.parent is None
        assert [link.context for link in span.links] == [loop.get_span_context()]


def test_what_fails_is_told_and_raised(traced: otel.Traced, q: mpqueue.Queue, told: Told) -> None:
    q.put_many([b""] * 100)
    with pytest.raises(mpqueue.Full):
        traced.put(b"x", block=False)
    assert traced.put(b"x", block=False, on_full="drop") is None
    with q.consumer() as c:
        item = traced.reserve(c)
        assert item is not None
        item.nack()
        with pytest.raises(mpqueue.StaleItem):
            traced.ack(item)
        with pytest.raises(mpqueue.Closed):
            item = traced.reserve(c)
            assert item is not None
            with traced.process(item):
                c.close()
    with pytest.raises(mpqueue.Closed):
        traced.reserve(c)
    errors = [
        ((span.attributes or {}).get("error.type"), span.status.status_code)
        for span in told.spans()
    ]
    failed = StatusCode.ERROR
    assert errors == [
        ("mpqueue.exceptions.Full", failed),
        ("Full", StatusCode.UNSET),
        (None, StatusCode.UNSET),
        ("mpqueue.exceptions.StaleItem", failed),
        (None, StatusCode.UNSET),
        ("mpqueue.exceptions.Closed", failed),
        (None, failed),
        ("mpqueue.exceptions.Closed", failed),
    ]


def test_an_item_that_is_settled_in_the_block_is_left_alone(
    traced: otel.Traced, q: mpqueue.Queue, told: Told
) -> None:
    q.put_many([b"a", b"b"])
    with q.consumer() as c:
        for act in (traced.ack, lambda item: item.nack()):
            item = traced.reserve(c)
            assert item is not None
            with traced.process(item):
                act(item)
    assert len(q) == 1
    names = [(span.attributes or {})["messaging.operation.name"] for span in told.spans()]
    assert names == ["reserve", "ack", "process", "reserve", "process"]


def test_messaging_metrics(traced: otel.Traced, q: mpqueue.Queue, told: Told) -> None:
    for _ in range(3):
        traced.put(b"x")
    with q.consumer() as c:
        for item in traced.reserve_many(c, 2):
            with traced.process(item):
                pass
        traced.reserve(c).nack()  # type: ignore[union-attr]
    points = told.points()
    assert [point.value for point in points["messaging.client.sent.messages"]] == [3]
    assert [point.value for point in points["messaging.client.consumed.messages"]] == [3]
    calls: dict[str, int] = {}
    for point in points["messaging.client.operation.duration"]:
        assert isinstance(point, HistogramDataPoint)
        assert tuple(point.explicit_bounds) == otel.DURATIONS
        calls[str((point.attributes or {})["messaging.operation.name"])] = point.count
    assert calls == {"put": 3, "reserve": 2, "ack": 2}
    (work,) = points["messaging.process.duration"]
    assert work.count == 2


def test_observed_numbers_are_those_of_stats(
    q: mpqueue.Queue, spool: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []
    read = metrics.read
    monkeypatch.setattr(metrics, "read", lambda path: reads.append(path) or read(path))
    missing = spool.parent / "missing"
    failed: list[str] = []
    otel.observe(
        spool, missing, meter_provider=told.meters, report=lambda queue, _: failed.append(queue)
    )
    for turn in (1, 2, 3):
        q.put(b"x")
        points = told.points()
        stats = q.stats()
        assert len(reads) == 2 * turn, "one reading of each queue for a collection"
        assert failed == [str(missing)] * turn
        values = {
            name: {p.attributes["messaging.destination.name"]: p.value for p in found}
            for name, found in points.items()
        }
        assert values.pop("mpqueue.up") == {str(spool): 1, str(missing): 0}
        assert values.pop("mpqueue.live") == {str(spool): 1}
        age = values.pop("mpqueue.oldest_ready_age_seconds")[str(spool)]
        assert 0 < age < stats.oldest_ready_age_seconds
        expected = stats._asdict()
        del expected["durability"], expected["oldest_ready_age_seconds"]
        histogram = expected.pop("sync_duration_seconds")
        assert isinstance(histogram, mpqueue.Histogram)
        wanted = {f"mpqueue.{name}": {str(spool): value} for name, value in expected.items()}
        wanted["mpqueue.sync_duration.count"] = {str(spool): histogram.count}
        wanted["mpqueue.sync_duration.sum"] = {str(spool): histogram.sum}
        assert values == wanted
    with pytest.raises(ValueError, match="at least one queue"):
        otel.observe(meter_provider=told.meters)


def test_a_name_instead_of_the_path(q: mpqueue.Queue, told: Told) -> None:
    otel.Traced(q, name="orders", tracer_provider=told.tracers).put(b"text")
    (span,) = told.spans()
    assert span.name == "send orders"
    assert (span.attributes or {})["messaging.destination.name"] == "orders"


def test_without_an_sdk_it_is_the_queue_alone(spool: Path, run_python: RunPython) -> None:
    run_python(
        """
        import sys
        import mpqueue
        from mpqueue import otel
        with mpqueue.Queue(sys.argv[1], segment_size=65536) as q, q.consumer() as c:
            traced = otel.Traced(q)
            otel.observe(sys.argv[1])
            traced.put(b"x")
            item = traced.reserve(c)
            assert item.headers == {}
            with traced.process(item):
                pass
            assert len(q) == 0
        assert "opentelemetry.sdk.trace" not in sys.modules
        """,
        spool,
    )


def test_the_missing_extra_is_named(run_python: RunPython) -> None:
    run_python(
        """
        import sys
        sys.modules["opentelemetry"] = None
        try:
            import mpqueue.otel
        except ImportError as error:
            assert "mpqueue[otel]" in str(error)
        else:
            sys.exit("imported")
        """
    )


def test_the_page_names_everything_public() -> None:
    page = (Path(__file__).resolve().parent.parent.parent / "docs/metrics.md").read_text()
    calls = [name for name in vars(otel.Traced) if not name.startswith("_") and name != "queue"]
    assert [name for name in [*otel.__all__, *calls] if f"{name}" not in page] == []
