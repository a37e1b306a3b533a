"""Users of a real Airflow see topologies whose DAGs they may read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from support.supervised_streams import NUMBERS
from tidemark.control import process
from tidemark.local import airflow
from tidemark.model.project.files import CHECKOUT, Project

MANAGER = """
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class OneDag(SimpleAuthManager):
    def is_authorized_dag(self, *, method, user, access_entity=None, details=None):
        granted = super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
        return granted and (user.role != "viewer" or (details and details.id) == "tidemark_hers_streams")
"""
"""Viewers may read one DAG; Airflow's own manager cannot say so."""
NO_RIGHT = "may not read this topology&#39;s DAG; ask an administrator"
ROUTES = [
    "/pages/{0}",
    "/pages/{0}/slas",
    "/pages/{0}/operators/kept",
    "/pages/{0}/streams/numbers",
    "/pages/{0}/history",
    "/pages/{0}/reports/2026-01-01T12",
    "/topologies/{0}",
    "/topologies/{0}/status",
    "/topologies/{0}/operators",
    "/topologies/{0}/operators/kept",
    "/topologies/{0}/latency",
    "/topologies/{0}/path",
    "/topologies/{0}/why",
    "/topologies/{0}/bound",
    "/topologies/{0}/whatif?operator=kept&scale=0.5",
    "/topologies/{0}/decisions",
]
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


@dataclass(frozen=True)
class Users:
    """Clients of two users, and one without a login."""

    admin: httpx.Client
    ann: httpx.Client
    anonymous: httpx.Client


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    folder = tmp_path_factory.mktemp("rights")
    home, project = folder / "airflow", Project(folder)
    for place in (project.topologies, home / "config", folder / "warehouse"):
        place.mkdir(parents=True)
    for name in ("hers", "other"):
        (project.topologies / f"{name}.toml").write_text(NUMBERS.replace('name = "numbers"', f'name = "{name}"'))
    (project.topologies / "broken.toml").write_text('name = "broken"\n[operators')
    (home / "config" / "one_dag.py").write_text(MANAGER)
    manager = {"CORE__AUTH_MANAGER": "one_dag.OneDag", "CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,ann:viewer"}
    variables = {"tidemark_warehouse": str(folder / "warehouse")}
    parts = airflow.start(
        home, root=CHECKOUT, project=project, variables=variables, settings=manager, components={"api-server"}
    )
    try:
        url = airflow.api(home).url
        process.wait_until(lambda: answers(url), "the API server", 120, by=parts)
        passwords = json.loads((home / "passwords.json").read_text())
        with (
            signed_in(url, "admin", passwords) as admin,
            signed_in(url, "ann", passwords) as ann,
            httpx.Client(base_url=f"{url}/tidemark", timeout=60) as anonymous,
        ):
            yield Users(admin, ann, anonymous)
    finally:
        airflow.stop(home)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v2/version", timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


def signed_in(url: str, user: str, passwords: dict[str, str]) -> httpx.Client:
    login = httpx.post(f"{url}/auth/token", json={"username": user, "password": passwords[user]}, timeout=60)
    token = login.json()["access_token"]
    return httpx.Client(base_url=f"{url}/tidemark", headers={"Authorization": f"Bearer {token}"}, timeout=60)


@pytest.mark.parametrize("route", ROUTES)
def test_a_topology_of_others_is_refused_everywhere(users: Users, route: str) -> None:
    refused = users.ann.get(route.format("other"))
    assert refused.status_code == 403
    assert "kept" not in refused.text
    assert users.ann.get(route.format("hers")).status_code in {200, 307, 404}
    assert users.admin.get(route.format("other")).status_code in {200, 307, 404}
    assert users.anonymous.get(route.format("hers")).status_code == 401


def test_an_answer_for_one_user_is_none_for_another(users: Users) -> None:
    """Answers are kept for seconds, for all users who may read them."""
    for _ in range(2):
        assert users.admin.get("/topologies/other").status_code == 200
        assert users.ann.get("/topologies/other").status_code == 403


def test_lists_have_the_topologies_of_their_reader(users: Users) -> None:
    assert users.ann.get("/topologies").json() == {"topologies": ["hers"]}
    assert set(re.findall(r'\btopology="([^"]*)"', users.ann.get("/metrics").text)) == {"hers"}
    assert users.admin.get("/topologies").json() == {"topologies": ["hers", "other"]}
    of_topology = re.compile(r'<(?:tr|section class="wrong [^"]*") id="(\w+)">')
    assert of_topology.findall(users.ann.get("/").text) == ["hers"]
    assert sorted(of_topology.findall(users.admin.get("/").text)) == ["broken", "hers", "other"]


def test_a_browser_gets_a_page_that_says_why(users: Users) -> None:
    refused = users.ann.get("/pages/other", headers={"Accept": "text/html"})
    assert (refused.status_code, NO_RIGHT in refused.text) == (403, True)


def test_names_are_not_probed_by_their_answers(users: Users) -> None:
    assert {users.ann.get(f"/topologies/{name}").status_code for name in ("other", "broken", "missing")} == {403}
    assert users.admin.get("/topologies/missing").status_code == 404


SILENCE = {"decision": "silence", "subject": "hers", "for": "2 h", "note": "deploy"}


def test_only_who_may_edit_a_dag_decides_about_its_alerts(users: Users) -> None:
    for user, status in ((users.anonymous, 401), (users.ann, 403), (users.admin, 200)):
        assert user.post("/topologies/hers/decisions", json=SILENCE).status_code == status
        form = user.get("/pages/hers/decisions?subject=hers")
        assert (form.status_code, "<button" in form.text) == (status, status == 200)
    (row,) = users.ann.get("/topologies/hers/decisions").json()["decisions"]
    assert (row["decision"], row["subject"], row["decided_by"], row["note"]) == ("silence", "hers", "admin", "deploy")


def test_a_cookie_decides_only_with_the_token_of_a_form(users: Users) -> None:
    """A browser sends the cookie with forms of any site."""
    cookie = users.admin.headers["Authorization"].removeprefix("Bearer ")
    with httpx.Client(base_url=users.admin.base_url, cookies={"_token": cookie}, timeout=60) as browser:
        assert browser.post("/topologies/other/decisions", json={**SILENCE, "subject": "other"}).status_code == 403
        fields = {"decision": "silence", "subject": "other", "for": "30 min"}
        assert browser.post("/pages/other/decisions", data=fields).status_code == 403
        (token,) = re.findall(r'name="token" value="(.+?)"', browser.get("/pages/other/decisions?subject=other").text)
        fields |= {"token": token}
        other_site = {"Origin": "https://evil.example"}
        assert browser.post("/pages/other/decisions", data=fields, headers=other_site).status_code == 403
        assert browser.get("/topologies/other/decisions").json()["decisions"] == []
        decided = browser.post("/pages/other/decisions", data=fields, headers={"Sec-Fetch-Site": "same-origin"})
        assert (decided.status_code, decided.headers["Location"]) == (303, "slas#other")
        stored = browser.get("/topologies/other/decisions").json()["decisions"]
        assert [row["decided_by"] for row in stored] == ["admin"]


def test_error_answers_have_the_headers_of_pages(users: Users) -> None:
    found = {}
    for user, method, path in (
        (users.anonymous, "GET", "/topologies"),
        (users.ann, "GET", "/topologies/other"),
        (users.ann, "GET", "/pages/other"),
        (users.admin, "GET", "/topologies/missing"),
        (users.admin, "GET", "/no/such/place"),
        (users.admin, "POST", "/topologies"),
        (users.admin, "GET", "/topologies/hers?at=x"),
        (users.admin, "GET", "/topologies/hers/path?last=x"),
    ):
        answer = user.request(method, path)
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        found[path] = answer.status_code
    assert sorted(found.values()) == [400, 400, 403, 403, 404, 404, 405]
