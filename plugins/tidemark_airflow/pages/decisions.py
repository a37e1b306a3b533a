"""Reads decisions about alerts from requests, and shows their form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from tidemark.errors import InvalidArgument
from tidemark.model.settings.intervals import utc
from tidemark.reports.pages.templates import POLICY, template
from tidemark.safe_text import is_text
from tidemark.semantics.incidents import Decision, DecisionSubject
from tidemark.sla.incidents.decisions import AlertDecision, DecisionFacts, end_ms

FIELDS = ("decision", "subject", "for", "until", "note")
MOST_CHARACTERS = 2_000
FORM_POLICY = POLICY.replace("form-action 'none'", "form-action 'self'")
"""Content-Security-Policy of the page with the form."""


def decision_of(fields: Mapping[str, Any], *, by: str, now_ms: int) -> AlertDecision:
    """Returns the decision in the *fields* of a request.

    Args:
        fields: the JSON or the form of the request.
        by: the person who decides.
        now_ms: the present, epoch ms.

    Raises:
        InvalidArgument: a field is unknown, missing or invalid.
    """
    texts = {}
    for name, value in fields.items():
        if name not in FIELDS:
            msg = f"{name!r} is not a field; use {', '.join(FIELDS)}"
            raise InvalidArgument(msg)
        if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
            msg = f"{name} is not a text of at most {MOST_CHARACTERS} characters; write it as a JSON string"
            raise InvalidArgument(msg)
        if not is_text(value):
            msg = f"{name} has half of a surrogate pair, which no table can store; correct the text"
            raise InvalidArgument(msg)
        texts[name] = value
    if texts.get("decision") not in [*Decision]:
        msg = f"decision is {texts.get('decision')!r}; use one of {', '.join(Decision)}"
        raise InvalidArgument(msg)
    return AlertDecision(
        decision=Decision(texts["decision"]),
        subject=texts.get("subject", ""),
        by=by,
        note=texts.get("note", ""),
        until_ms=end_ms(texts.get("for"), texts.get("until"), now_ms=now_ms),
    )


def decision_page(topology: str, subject: str, facts: DecisionFacts, *, token: str) -> str:
    """Returns the page with the form for decisions about *subject*.

    Args:
        topology: its topology.
        subject: name of an incident, an SLA or the topology.
        facts: what is broken, and what is silenced.
        token: the token of the form.
    """
    return template("sla/decision_page.html.j2").render(
        topology=topology,
        subject=subject,
        facts=facts,
        silences=[(silence, utc(silence.end_ms)) for silence in facts.silences],
        is_incident=facts.kind is DecisionSubject.INCIDENT,
        token=token,
        policy=Markup(FORM_POLICY),
    )
