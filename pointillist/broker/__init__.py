"""Apache Kafka on this machine's loopback: fetched, started, stopped; for trying out and tests."""
