"""Channels in their file, and messages about its errors."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.schemas import validator
from tidemark.cli.project.docs import channels
from tidemark.errors import InvalidSpec
from tidemark.model.slas import channel_kinds
from tidemark.model.slas.channel_spec import FORM, load, mistakes, parse, warnings
from tidemark.model.slas.sla_spec import parse as parse_slas
from tidemark.model.topology import load as load_topology

PROJECT = Path(__file__).parents[2]
KINDS = "alertmanager, mail, notifier, pagerduty, slack, webhook"


def test_the_projects_own_file_can_be_read() -> None:
    assert [channel.name for channel in load(PROJECT / "expectations" / "channels.toml")] == []


def test_a_channel_has_the_notifier_of_its_kind() -> None:
    mail, slack, own = parse(
        {
            "desk": {"kind": "mail", "to": ["a@b.c"], "connection": "desk_smtp"},
            "chat": {"kind": "slack", "owners": ["ops"]},
            "pager": {"kind": "notifier", "class": "my.Pager", "arguments": {"key": "{{ alert.subject }}", "n": 3}},
        },
        file="channels.toml",
    )
    assert (mail.name, mail.notifier.rpartition(".")[2], mail.arguments["to"]) == ("desk", "MailNotifier", ["a@b.c"])
    assert mail.arguments["smtp_conn_id"] == "desk_smtp"
    assert (slack.notifier.rpartition(".")[2], slack.owners) == ("SlackWebhookNotifier", ("ops",))
    assert (own.notifier, own.arguments) == ("my.Pager", {"key": "{{ alert.subject }}", "n": 3})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "desk.kind: is missing"),
        ({"kind": "fax"}, f"desk.kind: is 'fax'; use one of {KINDS}$"),
        ({"kind": "mail"}, r'desk.to: is missing; write to = \["desk@example.org"\]'),
        ({"kind": "notifier"}, "desk.class: is missing"),
        ({"kind": "slack", "severities": ["bad"]}, "desk.severities: has 'bad'; use any of critical, warning, info"),
        ({"kind": "slack", "changes": ["closed"]}, "desk.changes: has 'closed'; use any of opened, escalated"),
        ({"kind": "pagerduty", "changes": ["opened"]}, "desk.changes: leaves out 'resolved', so that alerts of kind"),
        ({"kind": "alertmanager", "valid_for": "long"}, "desk.valid_for: is 'long', which has no known unit"),
        ({"kind": "slack", "escalate_after": "5 min"}, r'desk.escalate_to: is missing; write escalate_to = \["lead"\]'),
        (
            {"kind": "slack", "escalate_to": ["lead"]},
            'desk.escalate_after: is missing; write escalate_after = "15 min"',
        ),
        (
            {"kind": "slack", "escalate_after": "5 min", "escalate_to": ["desk"]},
            "desk.escalate_to: has 'desk'; use other channels of this file: there are none",
        ),
        ({"kind": "alertmanager", "renotify_after": "1 h"}, "desk.renotify_after: is set, but each check sends"),
        ({"kind": "slack", "owner": "me"}, "desk.owner: is not a valid key here; did you mean owners"),
        (
            {"kind": "fax", "owner": "me"},
            f"desk.kind: is 'fax'; use one of {KINDS}\nchannels.toml: desk.owner: .* owners",
        ),
        (
            {"kind": "slack", "class": "a.B"},
            "desk.class: is set, but kind is 'slack'; leave it out, or choose kind notifier",
        ),
        ({"kind": "slack", "connection": ""}, 'desk.connection: is empty; write connection = "slack_default"$'),
        ({"kind": "notifier", "clas": "a.B"}, r"desk.clas: is not a valid key here; did you mean class\?$"),
    ],
)
def test_a_mistake_is_told_with_file_key_and_remedy(table: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec, match=f"^channels.toml: {message}"):
        parse({"desk": table}, file="channels.toml")
    # What compares several keys is no mistake for a schema.
    refused = [*validator("channels").iter_errors({"desk": table})]
    assert bool(refused) == bool(FORM.read("channels.toml", "desk", table).mistakes)


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        (
            {"kind": "fax", "owner": "me", "to": 3},
            [
                f"kind: is 'fax'; use one of {KINDS}",
                "owner: is not a valid key here; did you mean owners?",
                'to: is 3; write to = ["desk@example.org"]',
            ],
        ),
        # What compares right keys is told beside the mistakes of others.
        (
            {"kind": "alertmanager", "valid_for": "0 s", "renotify_after": "1 h", "escalate_to": ["nobody"]},
            [
                "valid_for: is '0 s'; write a length above 0, such as valid_for = \"1 h\"",
                'escalate_after: is missing; write escalate_after = "15 min", '
                "or leave out both escalate_after and escalate_to",
                "renotify_after: is set, but each check sends open alerts to an alertmanager again; leave it out; "
                "repeat_interval of its route decides when it tells again",
                "escalate_to: has 'nobody'; use other channels of this file: there are none",
            ],
        ),
        # No alert is said to stay open because of a misspelt word.
        (
            {"kind": "pagerduty", "changes": ["opened", "resolve"]},
            ["changes: has 'resolve'; use any of opened, escalated, acknowledged, resolved; did you mean resolved?"],
        ),
        (
            {"kind": "slack", "escalate_afer": "5 min", "escalate_to": ["desk"]},
            [
                "escalate_afer: is not a valid key here; did you mean escalate_after?",
                "escalate_to: has 'desk'; use other channels of this file: there are none",
            ],
        ),
    ],
)
def test_all_mistakes_of_a_channel_are_told_at_once(table: dict[str, Any], lines: list[str]) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse({"desk": table}, file="channels.toml")
    assert str(refused.value).splitlines() == [f"channels.toml: desk.{line}" for line in lines]


def test_what_is_no_table_is_no_channel() -> None:
    with pytest.raises(InvalidSpec, match=r"^channels.toml: desk: is 'mail'; write a table \[desk\]$"):
        parse({"desk": "mail"}, file="channels.toml")


FLIGHTS = load_topology(PROJECT / "jobs" / "topologies" / "flights.toml")
PROMISED = parse_slas(
    {"flights": {"fresh": {"subject": "flight_board", "error_after": "1 min", "owner": "desk", "severity": "warning"}}},
    FLIGHTS,
    file="slas.toml",
)


@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        ({}, []),
        ({"topologies": ["flights"], "owners": ["desk", FLIGHTS.owner], "severities": ["warning"]}, []),
        ({"topologies": ["flihgts"], "owners": ["x"]}, ["topologies: warning: has 'flihgts', which no alert has; did"]),
        ({"owners": ["dsk"]}, ["owners: warning: has 'dsk', which no alert has; did you mean desk?"]),
        ({"severities": ["critical", "warning", "info"]}, []),
        (
            {"severities": ["critical", "info"]},
            ["severities: warning: at present no SLA has severity critical or info; SLAs have warning"],
        ),
        (
            {"renotify_after": "30 s"},
            ["renotify_after: warning: is 30 s, but only checks send alerts, and flights has one every 1 min"],
        ),
        (
            {"escalate_after": "30 s", "escalate_to": ["lead"]},
            ["escalate_after: warning: is 30 s, but only checks send alerts, and flights has one every 1 min"],
        ),
    ],
)
def test_a_filter_or_time_without_effect_is_warned_of(keys: dict[str, Any], lines: list[str]) -> None:
    channels = parse({"pager": {"kind": "slack", **keys}, "lead": {"kind": "slack"}}, file="channels.toml")
    checked = replace(FLIGHTS, check_every_ms=60_000)
    found = [*warnings(channels, [(checked, PROMISED)])]
    assert len(found) == len(lines)
    for line, beginning in zip(found, lines, strict=True):
        assert line.startswith(f"pager.{beginning}")


def test_channels_that_only_escalate_to_each_other_are_refused() -> None:
    def table(to: str) -> dict[str, Any]:
        return {"kind": "slack", "escalate_after": "5 min", "escalate_to": [to]}

    circle = {"pager": table("lead"), "lead": table("pager")}
    with pytest.raises(
        InvalidSpec,
        match=(
            r"^channels\.toml: lead\.escalate_to: makes a circle, pager → lead → pager, "
            r"so that no alert comes to pager, lead; leave out 'pager', or"
        ),
    ):
        parse(circle, file="channels.toml")
    # What is behind a circle has no key to leave out.
    behind = {
        "later": {"kind": "slack"},
        "pager": table("lead"),
        "lead": {**table("pager"), "escalate_to": ["later", "pager"]},
    }
    with pytest.raises(
        InvalidSpec,
        match=r"pager\.escalate_to: makes a circle, lead → pager → lead, .* later, pager, lead; .* 'lead', or",
    ):
        parse(behind, file="channels.toml")
    parse({"desk": table("lead"), **circle}, file="channels.toml")  # desk gets every alert, and then lead


def test_every_channel_with_a_mistake_is_told(tmp_path: Path) -> None:
    file = tmp_path / "channels.toml"
    file.write_text('[desk]\nkind = "fax"\n[chat]\nkind = "slack"\n[pager]\nkind = "slack"\nowner = "me"\n')
    (error,) = mistakes(file)
    assert str(error).splitlines() == [
        f"channels.toml: desk.kind: is 'fax'; use one of {KINDS}",
        "channels.toml: pager.owner: is not a valid key here; did you mean owners?",
    ]
    file.write_text('[chat]\nkind = "slack"\n')
    assert mistakes(file) == []


@pytest.mark.parametrize("name", ["log", "The Desk"])
def test_a_name_that_cannot_be_used_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpec, match=f"^channels.toml: {name}: is .*use another name"):
        parse({name: {"kind": "slack"}}, file="channels.toml")


def test_a_missing_file_has_no_channels_and_invalid_toml_fails(tmp_path: Path) -> None:
    assert load(tmp_path / "channels.toml") == ()
    (tmp_path / "channels.toml").write_text("[desk")
    with pytest.raises(InvalidSpec, match=r"channels\.toml: file: is not valid TOML"):
        load(tmp_path / "channels.toml")


@pytest.mark.parametrize("kind", KINDS.split(", "))
def test_the_page_of_channels_has_a_section_that_loads(kind: str) -> None:
    page = (PROJECT / "docs" / "channels.md").read_text(encoding="utf-8")
    section = page.partition(f"\n### {kind}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    (example,) = re.findall(r"```toml\n(.+?)```", section, re.DOTALL)
    content = tomllib.loads(example)
    assert [table["kind"] for table in content.values()] == [kind]
    assert [channel.name for channel in parse(content, file="channels.toml")] == [*content]


def test_only_receivers_that_keep_state_get_late_ends() -> None:
    tables = {kind: {"kind": kind, "to": ["a@b.c"]} if kind == "mail" else {"kind": kind} for kind in KINDS.split(", ")}
    tables["notifier"]["class"] = "my.Pager"
    channels = {channel.name: channel for channel in parse(tables, file="channels.toml")}
    assert {name for name, channel in channels.items() if channel.keeps_state} == {
        "pagerduty", "alertmanager", "webhook",
    }  # fmt: skip
    assert {name for name, channel in channels.items() if channel.sends_again} == {"alertmanager"}


def test_the_page_of_channels_is_current() -> None:
    assert (PROJECT / "docs" / "channels.md").read_text(encoding="utf-8") == channels(), "run `tidemark docs`"


@pytest.mark.parametrize("kind", KINDS.split(", "))
def test_the_example_of_every_key_is_accepted(kind: str) -> None:
    keys = [
        key
        for key in (*FORM.keys[1:], *channel_kinds.KINDS[kind].keys)
        if (kind, key.name) != ("alertmanager", "renotify_after")
    ]
    table = tomllib.loads("".join(f"{key.name} = {key.example}\n" for key in keys))
    channel, lead = parse({"desk": {"kind": kind, **table}, "lead": {"kind": "slack"}}, file="channels.toml")
    assert channel.severities == ("critical",)
    assert lead.escalated_by == {"desk": 900_000}


def test_the_example_of_reminders_and_escalation_loads() -> None:
    page = (PROJECT / "docs" / "alerts.md").read_text(encoding="utf-8")
    section = page.partition("### Reminders and escalation")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```toml\n(.+?)```", section, re.DOTALL)
    pager, lead = parse(tomllib.loads(example), file="channels.toml")
    assert (pager.renotify_after_ms, pager.escalated_by) == (1_800_000, {})
    assert (lead.renotify_after_ms, lead.escalated_by) == (None, {"pager": 900_000})
