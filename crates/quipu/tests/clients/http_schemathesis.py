"""Requests made up from /openapi.json: no server error, and no reply that is not documented. Argument: the port of RESP; the port of HTTP is in QUIPU_HTTP.

Watching is left out, because its reply never ends, and readiness, whose 503 is an answer; the server's own tests have both.
"""

import os
import pathlib
import re
import subprocess
import sys

import schemathesis

CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
]


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    """Batches as lines: as text, whatever was made up."""
    return value if isinstance(value, bytes) else str(value).encode()


def main():
    port = os.environ["QUIPU_HTTP"]
    command = [
        str(pathlib.Path(sys.executable).parent / "st"),
        "run",
        f"http://127.0.0.1:{port}/openapi.json",
        "--checks=" + ",".join(CHECKS),
        "--max-examples=100",
        "--exclude-path-regex=/(watch|readyz)$",
        "--request-timeout=10",
        "--no-color",
    ]
    # This file has the hooks, too.
    environment = os.environ | {"SCHEMATHESIS_HOOKS": __file__}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    cases = re.search(r"(\d+) generated, (\d+) passed", ran.stdout)
    if ran.returncode != 0 or cases is None or cases[1] != cases[2]:
        sys.exit(ran.stdout + ran.stderr)
    if int(cases[1]) < 500:
        sys.exit(f"only {cases[1]} requests were made up:\n{ran.stdout}")
    print(f"proof: schemathesis {schemathesis.__version__}: {cases[1]} checks")


if __name__ == "__main__":
    main()
