"""Bullpen behind interfaces of others. Each module needs its framework, and nothing else here does.

django.py              a backend for Django's own tasks: django.tasks of Django 6, or the package django-tasks
otel.py                spans and metrics of tasks for OpenTelemetry
prometheus.py          a collector of metrics for pools, queues and workers
prometheus_server.py   the endpoint of `bullpen worker --metrics-port`
sentry.py              errors of tasks, and check-ins of schedules, for Sentry
"""
