"""How operators see the server: metrics, health, status, the live page, logs, traces."""
