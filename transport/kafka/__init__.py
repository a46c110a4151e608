"""The log on Kafka: kafka-python for agents, confluent-kafka for aggregators."""
