"""What the breakers tell OpenTelemetry: metrics, span events, log events, and spans where there are none."""
