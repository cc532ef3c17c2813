"""A circuit breaker around every tool call of an AI agent, switched on from outside, visible in OpenTelemetry."""
