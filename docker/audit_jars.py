"""Lists all jars as CycloneDX, and asks OSV for their known vulnerabilities.

`make audit` runs it: python docker/audit_jars.py BILL FOLDER... The status is 0 without findings, 1 with
vulnerabilities, and else 2 if jars were not audited: they do not name their Maven coordinates, or OSV does not answer.
TIDEMARK_OSV names a mirror of OSV.

How it works: a jar that Maven built has its coordinates in `pom.properties`, and those of jars that were merged into
it. Ivy's log has the coordinates of what it resolved. GROUPS has those of other jars of PySpark that handle input.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import urllib.request
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tidemark.cli.shared.output import say_inert

OSV = "https://api.osv.dev"
ANSWERS_WITHIN_S = 20
BATCH = 500
"""Queries of one request; OSV accepts 1,000."""
GROUPS = {
    "derby": "org.apache.derby",
    "hive-exec": "org.apache.hive",
    "ivy": "org.apache.ivy",
    "jackson-module-scala_2.13": "com.fasterxml.jackson.module",
    "libthrift": "org.apache.thrift",
    "lz4-java": "org.lz4",
    "netty-tcnative-boringssl-static": "io.netty",
    "rocksdbjni": "org.rocksdb",
    "scala-compiler": "org.scala-lang",
    "scala-library": "org.scala-lang",
    "scala-reflect": "org.scala-lang",
    "snappy-java": "org.xerial.snappy",
    "tink": "com.google.crypto.tink",
    "xz": "org.tukaani",
    "zstd-jni": "com.github.luben",
}
POM = re.compile(r"META-INF/maven/[^/]+/[^/]+/pom\.properties")
RESOLVED = re.compile(r"found (\S+)#(\S+);(\S+) in ")
NAME = re.compile(r"(?P<name>.+?)-(?P<version>\d.*)\.jar")


class Module(NamedTuple):
    """Coordinates of a Maven module; *group* is empty if it is unknown."""

    group: str
    name: str
    version: str

    @property
    def purl(self) -> str:
        """The address of the module as a package."""
        return f"pkg:maven/{self.group}/{self.name}@{self.version}"

    def component(self) -> dict[str, Any]:
        """Returns the module as a component of CycloneDX."""
        coordinates = {"group": self.group, "purl": self.purl} if self.group else {}
        return {"type": "library", "name": self.name, "version": self.version, **coordinates}


class Jar(NamedTuple):
    """A file, its module, and the modules that were merged into it."""

    path: Path
    module: Module
    merged: list[Module]

    def component(self) -> dict[str, Any]:
        """Returns the jar as a component of CycloneDX, with its hash."""
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()
        file = {"name": "tidemark:file", "value": "/".join(self.path.parts[-2:])}
        extra = {"hashes": [{"alg": "SHA-256", "content": digest}], "properties": [file]}
        merged = {"components": [module.component() for module in self.merged]} if self.merged else {}
        return {**self.module.component(), **extra, **merged}


def modules_in(path: Path) -> Iterator[Module]:
    """Yields the modules that the jar *path* names itself."""
    with zipfile.ZipFile(path) as jar:
        for name in filter(POM.fullmatch, jar.namelist()):
            lines = jar.read(name).decode("utf-8", "replace").splitlines()
            values = dict(map(str.strip, line.split("=", 1)) for line in lines if "=" in line)
            if {"groupId", "artifactId", "version"} <= values.keys():
                yield Module(values["groupId"], values["artifactId"], values["version"])


def jar_of(path: Path, resolved: Iterable[Module]) -> Jar:
    """Returns the jar *path*, which may be one of the *resolved* modules."""
    named = sorted(set(modules_in(path)))
    # The name of a file may have a classifier behind the version.
    matching = [
        module
        for module in (*resolved, *named)
        if re.match(rf"{re.escape(f'{module.name}-{module.version}')}\b", path.stem)
    ]
    if matching:
        return Jar(path, matching[0], [module for module in named if module not in matching])
    parts = NAME.fullmatch(path.name)
    name, version = (parts["name"], parts["version"]) if parts else (path.stem, "")
    return Jar(path, Module(GROUPS.get(name, ""), name, version), named)


def jars_of(folders: Iterable[Path]) -> Iterator[Jar]:
    """Yields the jars below *folders*."""
    for folder in folders:
        logs = [log.read_text(encoding="utf-8", errors="replace") for log in sorted(folder.rglob("ivy.log"))]
        resolved = [Module(*found) for log in logs for found in RESOLVED.findall(log)]
        for path in sorted(folder.rglob("*.jar")):
            yield jar_of(path, resolved)


def vulnerabilities(purls: list[str], service: str) -> dict[str, list[str]]:
    """Returns the ids that *service* knows, by purl.

    Raises:
        OSError: the service does not answer.
        ValueError: the answer has another form.
    """
    found: dict[str, list[str]] = {}
    for start in range(0, len(purls), BATCH):
        asked = purls[start : start + BATCH]
        body = json.dumps({"queries": [{"package": {"purl": purl}} for purl in asked]}).encode()
        request = urllib.request.Request(f"{service}/v1/querybatch", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=ANSWERS_WITHIN_S) as response:
            results = json.load(response)["results"]
        for purl, result in zip(asked, results, strict=True):
            if ids := [vulnerability["id"] for vulnerability in result.get("vulns") or ()]:
                found[purl] = ids
    return found


def files_by_purl(jars: Iterable[Jar]) -> Mapping[str, list[str]]:
    """Returns the names of the files that have a module, by its purl."""
    files = defaultdict(list)
    for jar in jars:
        for module in filter(lambda module: module.group, (jar.module, *jar.merged)):
            files[module.purl].append(jar.path.name)
    return files


def main(bill: Path, *folders: Path) -> int:
    """Writes *bill*, prints the vulnerabilities of the jars below *folders*, and returns the status."""
    jars = list(jars_of(folders))
    components = [jar.component() for jar in jars]
    document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}
    bill.write_text(json.dumps(document, indent=1), encoding="utf-8")
    files = files_by_purl(jars)
    service = os.environ.get("TIDEMARK_OSV", OSV)
    try:
        found = vulnerabilities(sorted(files), service)
    except (OSError, ValueError, KeyError) as error:
        say_inert(f"{len(jars)} jars were not audited because {service} did not answer: {error}; {bill} lists them")
        return 2
    for purl, ids in found.items():
        say_inert(f"{purl} ({', '.join(files[purl])}): {', '.join(ids)}")
    unknown = [jar.path.name for jar in jars if not (jar.module.group or jar.merged)]
    say_inert(f"{len(jars) - len(unknown)} jars were audited; {len(found)} of their modules have known vulnerabilities")
    if unknown:
        reason = "their coordinates are unknown"
        say_inert(f"{len(unknown)} jars were not audited because {reason}: {', '.join(unknown)}")
    return 1 if found else 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
