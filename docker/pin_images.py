"""Writes the digests of the images that docker/ names into docker/.env.

A tag may move; a digest is one image for ever. Compose reads the file, and builds and runs these images from then on.
It asks their registry by `docker buildx`: python docker/pin_images.py docker/.env
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

IMAGE = re.compile(r"\$\{(\w+_IMAGE):-([^}]+)\}")
"""A variable of the compose file, and the tag that it has by default."""
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def digest_of(image: str) -> str:
    """Returns the digest of *image*, of all its platforms."""
    command = ["docker", "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}"]
    digest = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    if not DIGEST.fullmatch(digest):
        msg = f"{image}: docker printed no digest, but {digest!r}"
        raise SystemExit(msg)
    return digest


def main() -> None:
    """Writes the file that the command line names."""
    compose = (Path(__file__).parent / "compose.yaml").read_text(encoding="utf-8")
    tags = dict(IMAGE.findall(compose))
    lines = [f"{name}={tag}@{digest_of(tag)}\n" for name, tag in sorted(tags.items())]
    Path(sys.argv[1]).write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
