"""Notifiers of channels: mail, PagerDuty, Alertmanager, webhooks."""
