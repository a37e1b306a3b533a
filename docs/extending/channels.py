"""Sends alerts as text messages to phones."""

from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import required
from tidemark.model.slas.channel_kinds import ChannelKind, register

PHONES = required("phones", value_types.texts(), example='["+49 30 123456"]', meaning="the numbers")


def notifier(values):
    return "my_package.text_messages.PhoneNotifier", {"to": list(values[PHONES]), "text": "{{ alert.text }}"}


register(ChannelKind(name="phone", keys=(PHONES,), notifier=notifier))
