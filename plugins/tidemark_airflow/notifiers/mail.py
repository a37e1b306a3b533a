"""Sends alerts as mails that have a text beside their HTML."""

from __future__ import annotations

from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from functools import cached_property
from typing import Any

from airflow.providers.smtp.hooks.smtp import SmtpHook
from airflow.providers.smtp.notifications.smtp import SmtpNotifier


class MailNotifier(SmtpNotifier):
    """Sends *text* beside the HTML of Airflow's SmtpNotifier.

    Programs show the last form that they can show (RFC 2046, 5.1.4), so the text comes first.
    """

    template_fields = (*SmtpNotifier.template_fields, "text")  # type: ignore[assignment]

    def __init__(self, *, text: str, **arguments: Any) -> None:
        super().__init__(mime_subtype="alternative", **arguments)
        self.text = text

    @cached_property
    def hook(self) -> SmtpHook:
        """The connection to the mail server."""
        return _MailHook(self.text, smtp_conn_id=self.smtp_conn_id)


class _MailHook(SmtpHook):
    def __init__(self, text: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._text = text

    def _build_mime_message(self, *arguments: Any, **named: Any) -> tuple[MIMEMultipart, list[str]]:
        # The provider has no public place for a second form of the body.
        message, recipients = super()._build_mime_message(*arguments, **named)
        message.set_payload([MIMEText(self._text, "plain", "utf-8"), *message.get_payload()])
        return message, recipients
