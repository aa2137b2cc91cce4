"""A Kafka broker as a process: one node that is its own controller (KRaft); and a producer.

    with start_kafka() as broker, open_topic(broker, "orders", 3) as topic:
        topic.send([(2, b"key", b"value")])

Ivy, which comes with Spark, downloads Kafka's jars from Maven Central the first time.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from sparkwal.testing.servers import Server, ServerError
from tests.jars import JAVA, SPARK_JARS, Module, fetch, run
from tests.jars import JVM as SMALL

BROKER = (Module("org.apache.kafka", "kafka_2.13", "4.3.1"),)
# Spark's connector, in pieces that fit each other: not each can be had in Spark's own version.
# Spark's jars have their other dependencies.
CONNECTOR = (
    Module("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    Module("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),
    Module("org.apache.kafka", "kafka-clients", "3.9.2"),
    Module("org.apache.commons", "commons-pool2", "2.13.1"),
)
JVM = [*SMALL, "-Dlog4j2.level=INFO"]

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
log.dirs={folder}/data
auto.create.topics.enable=false
"""
_CLUSTER = "c3Bhcmt3YWwta2Fma2EtMQ"  # any 16 bytes
_STARTED = "Kafka Server started"
_START_SECONDS = 120.0
_ATTEMPTS = 3


@dataclass(frozen=True)
class Broker(Server):
    """A running broker; its url is what clients call the bootstrap servers.

    Attributes:
        jars: its class path, which has a client too.
        connector: the jars that Spark needs beyond its own.
    """

    jars: str
    connector: tuple[str, ...]


class Sent(NamedTuple):
    """A record that the broker has acknowledged."""

    partition: int
    offset: int
    key: bytes
    value: bytes


@dataclass
class Topic:
    """A topic, a producer for it, and what the broker acknowledged, in that order."""

    broker: Broker
    name: str
    jvm: Any
    producer: Any
    sent: list[Sent] = field(default_factory=list)

    def send(self, records: list[tuple[int, bytes, bytes]]) -> None:
        """Produce (partition, key, value) and wait until all are acknowledged."""
        record = self.jvm.org.apache.kafka.clients.producer.ProducerRecord
        futures = [self.producer.send(record(self.name, *given)) for given in records]
        for given, future in zip(records, futures, strict=True):
            partition, key, value = given
            self.sent.append(Sent(partition, future.get().offset(), key, value))


def start_kafka() -> Broker:
    """Start a broker on free ports."""
    for attempt in range(_ATTEMPTS):
        broker = _spawn()
        try:
            _wait(broker)
            return broker
        except ServerError:
            broker.stop()
            # Someone else may have taken a port since it was found free.
            if attempt == _ATTEMPTS - 1:
                raise
        except BaseException:
            broker.stop()
            raise
    raise AssertionError("unreachable")


@contextmanager
def open_topic(broker: Broker, name: str, partitions: int) -> Iterator[Topic]:
    """Create a topic, with a producer in a JVM that ends with this."""
    port, token, process = launch_gateway(
        classpath=broker.jars,
        javaopts=JVM,
        java_path=JAVA,
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
    )
    try:
        kafka = gateway.jvm.org.apache.kafka
        bytes_of = "org.apache.kafka.common.serialization.ByteArraySerializer"
        admin = kafka.clients.admin.Admin.create({"bootstrap.servers": broker.url})
        new = kafka.clients.admin.NewTopic(name, partitions, 1)
        admin.createTopics([new]).all().get()
        admin.close()
        producer = kafka.clients.producer.KafkaProducer(
            {
                "bootstrap.servers": broker.url,
                "key.serializer": bytes_of,
                "value.serializer": bytes_of,
            }
        )
        yield Topic(broker, name, gateway.jvm, producer)
        producer.close()
    finally:
        gateway.shutdown()
        process.stdin.close()  # it ends when this does
        process.wait()


def _spawn() -> Broker:
    folder = tempfile.TemporaryDirectory(prefix="sparkwal-kafka-")
    home = Path(folder.name)
    try:
        # Kafka brings an interface to log to, Spark what implements it. First come, first found.
        logging = [str(jar) for x in ("slf4j-api", "log4j") for jar in SPARK_JARS.glob(f"{x}-*")]
        jars = os.pathsep.join([*logging, *fetch(BROKER, home, transitive=True)])
        connector = tuple(fetch(CONNECTOR, home, transitive=False))
        port, controller = _free_ports(2)
        properties = home / "server.properties"
        properties.write_text(_PROPERTIES.format(port=port, controller=controller, folder=home))
        java = [JAVA, *JVM, "-cp", jars]
        run([*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(properties)])
        with (home / "output").open("wb") as output:
            process = subprocess.Popen(
                [*java, "kafka.Kafka", str(properties)],
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal is for the tests, which then stop the broker themselves.
                start_new_session=True,
            )
    except BaseException:
        folder.cleanup()
        raise
    return Broker(f"127.0.0.1:{port}", process, folder, jars, connector)


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _wait(broker: Broker) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while _STARTED not in broker.output():
        code = broker.process.poll()
        if code is not None or time.monotonic() > deadline:
            ended = "did not start in time" if code is None else f"ended with code {code}"
            raise ServerError(f"the broker at {broker.url} {ended}:\n{broker.output()[-4000:]}")
        time.sleep(0.05)
