"""Names numbers of Apache Apex's STRAM.

It measures each operator in its own current window, and its path sums moving averages, so it is no window's path.
Source: StreamingContainerManager.
"""

LATENCY_SAMPLES = 10
"""Latencies in an operator's moving average: THROUGHPUT_CALCULATION_INTERVAL / HEARTBEAT_INTERVAL_MILLIS."""
