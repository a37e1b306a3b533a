"""A driver waits for a broker beyond reach, and names it.

Its clients reach the broker through a proxy, whose address the broker advertises. Producers of the tests have another
way to it.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from streaming.drivers import OnlyDriver, SharedDriver, in_kafka
from streaming.laws import check_accounting, check_read_once
from streaming.sending import send_numbers

from support.tcp_proxy import TcpProxy
from tidemark.local import broker as embedded
from tidemark.model.project.layout import Layout
from tidemark.model.topology import load
from tidemark.why.evidence.findings import WhyFinding
from tidemark.why.walk import why

NAMED_WITHIN_S = 45
"""The 30 s of docs/why.md, and 15 s for a busy machine."""
TOML = """
name = "far"
window = "5 s"
trigger = "1 s"
facts_every = "0 s"

[kafka.plant]
bootstrap = "{address}"

[kafka.plant.settings]
"request.timeout.ms" = 5000
"default.api.timeout.ms" = 6000

[operators.events]
kind = "source"
sub_topology = "all"
kafka = "plant"
topic = "{topic}"
fields = "n bigint, at bigint"
timestamp = "at"
bound = "1 min"

[operators.kept]
kind = "sink"
input = "events"
table = "kept"

[operators.sent]
kind = "sink"
input = "events"
kafka = "plant"
topic = "{topic}_sent"
"""


class FarDriver(OnlyDriver):
    """A driver on the other side of *network*, reading *topic*."""

    def __init__(self, home: Path, network: TcpProxy, topic: str, shared: SharedDriver, *arguments: str) -> None:
        self._home, self._address = home, network.address
        toml = TOML.format(address=network.address, topic=topic)
        super().__init__(home, toml, f"plant={network.address}", *arguments, shared=shared)

    def why(self) -> WhyFinding:
        """The best explanation of `kept`."""
        layout = Layout(self._home / "warehouse")
        return why(load(self._home / "far.toml"), layout, at_ms=time.time_ns() // 1_000_000, operator="kept")[0]

    def names_the_broker(self) -> bool:
        """Returns true if `tidemark why` names the broker that is silent."""
        finding = self.why()
        return finding.cause == "broker_silent" and self._address in finding.seen

    def doing(self) -> str:
        beat = self.control.heartbeat()
        return beat.doing if beat else ""


def check_once(driver: FarDriver, broker: str, topic: str, numbers: list[int]) -> None:
    """Checks that each record was decided once, by one driver."""
    assert [row["n"] for row in driver.rows("kept")] == numbers
    batches = driver.rows("batches")
    check_read_once(driver.rows("partition_batches"))
    check_accounting(driver.rows("operator_batches"))
    assert {row["epoch"] for row in batches} == {1}
    sent = {message.headers["tidemark-id"] for message in in_kafka(broker, f"{topic}_sent")}
    assert len(sent) == len(numbers)


def test_a_batch_outlives_a_partition_from_its_broker(
    tmp_path: Path, broker: str, network: TcpProxy, shared: SharedDriver
) -> None:
    topic = "far_in_a_batch"
    embedded.create_topics(broker, {topic: 1, f"{topic}_sent": 1})
    send_numbers(broker, topic, 0, 1)
    with FarDriver(tmp_path, network, topic, shared, "--slow", "events=2000") as driver:
        driver.wait_for("kept", 2)
        send_numbers(broker, topic, 2)
        driver.wait(lambda: driver.doing() == "batch 1", "the second batch")
        stalled_ms = time.time_ns() // 1_000_000
        network.stall()
        driver.wait(driver.names_the_broker, "a finding about the broker", NAMED_WITHIN_S)
        since_ms = driver.why().since_ms
        assert since_ms is not None
        assert stalled_ms - 30_000 < since_ms < time.time_ns() // 1_000_000
        driver.wait(lambda: "continues when they answer" in driver.log(), "clients that have given up")
        send_numbers(broker, topic, 3)
        network.forward()
        driver.wait_for("kept", 4)
        driver.wait(lambda: driver.why().cause != "broker_silent", "a broker that answers")
        assert driver.drain() == 0
    check_once(driver, broker, topic, [0, 1, 2, 3])


@pytest.mark.long
@pytest.mark.parametrize("fault", ["stall", "reset"])
def test_a_partition_longer_than_all_timeouts_ends_well(
    tmp_path: Path, broker: str, network: TcpProxy, shared: SharedDriver, fault: str
) -> None:
    topic = f"far_{fault}"
    embedded.create_topics(broker, {topic: 1, f"{topic}_sent": 1})
    send_numbers(broker, topic, 0, 1)
    with FarDriver(tmp_path, network, topic, shared) as driver:
        driver.wait_for("kept", 2)
        getattr(network, fault)()
        send_numbers(broker, topic, 2, 3)
        driver.wait(driver.names_the_broker, "a finding about the broker", NAMED_WITHIN_S)
        driver.wait(lambda: "continues when they answer" in driver.log(), "clients that have given up")
        network.forward()
        driver.wait_for("kept", 4)
        assert driver.drain() == 0
    check_once(driver, broker, topic, [0, 1, 2, 3])
