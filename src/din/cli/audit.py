"""`din audit list | verify`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

import click
import msgspec

from din.cli.asking import ask
from din.cli.display import Column, show, show_document, show_facts
from din.cli.frame import Command, gateway_option, output_option, say
from din.cli.quantities import parse_duration_s
from din.client.client import decode_answer
from din.domain.audit import AuditCheck, AuditEntry, AuditFact, AuditList
from din.errors import Conflict, UsageError

LIMIT_MAX: Final = 1_000
COLUMNS: Final[tuple[Column[AuditEntry], ...]] = (
    Column("TIME (UTC)", lambda each: each.entry.at[:23].replace("T", " ")),
    Column("WHO", lambda each: f"{each.entry.kind} {each.entry.who}".strip()),
    Column("FROM", lambda each: each.entry.address),
    Column("WHAT", lambda each: each.entry.what),
    Column("TARGET", lambda each: _target(each.entry)),
    Column("OUTCOME", lambda each: each.entry.outcome),
    Column("TENANT", lambda each: each.entry.tenant, is_wide=True),
    Column("BEFORE", lambda each: _brief(each.entry.before), is_wide=True),
    Column("AFTER", lambda each: _brief(each.entry.after), is_wide=True),
    Column("SEQ", lambda each: str(each.seq), is_wide=True, is_number=True),
)


def _target(fact: AuditFact) -> str:
    is_named = fact.name not in ("", fact.target)
    return f"{fact.target} ({fact.name})".lstrip() if is_named else fact.target


def _brief(facts: dict[str, object]) -> str:
    return msgspec.json.encode(facts).decode() if facts else ""


@click.command(
    "list",
    cls=Command,
    examples=(
        "din audit list --since 1h",
        "din audit list --what model --who 3f9a12bc -o wide",
        "din audit list --what access.refuse --since 2026-01-31T08:00 -o json",
    ),
)
@click.option("--since", metavar="TIME", help="From then on: 90m, 7d, or 2026-01-31T08:00 (UTC).")
@click.option("--until", metavar="TIME", help="Before then, likewise.")
@click.option("--who", metavar="ID", help="Key id, node id, or local, stranger, gateway.")
@click.option("--what", metavar="WORD", help="Such as model, key.revoke, access.refuse.")
@click.option("--target", metavar="NAME", help="What was changed, by name or id.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True)
@gateway_option
@output_option
def list_entries(
    since: str | None,
    until: str | None,
    who: str | None,
    what: str | None,
    target: str | None,
    limit: int,
    gateway: str | None,
    output: str,
) -> None:
    """Who changed what, from where, and who was refused; newest first.

    A change is written down before it is made: an empty OUTCOME means that nothing went wrong.
    """
    given = {
        "since": moment("--since", since),
        "until": moment("--until", until),
        "who": who,
        "what": what,
        "target": target,
        "limit": str(limit),
    }
    query = urlencode({name: value for name, value in given.items() if value})
    with ask(gateway) as client:
        answer = client.call("GET", f"/api/v1/audit?{query}")
    view = decode_answer(answer, AuditList)
    show(output, answer.body, view.items, COLUMNS, lambda each: str(each.seq))
    if not view.items and output in ("table", "wide"):
        say("no entry matches")


def moment(option: str, text: str | None) -> str | None:
    """A time, or a span that ends now, in ISO 8601. Raises UsageError."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        if not text[:1].isdigit():
            raise UsageError(f"{option} is {text!r}", hint="90m, 7d, 2026-01-31T08:00") from None
        seconds = parse_duration_s(option, text) or 0
        found = datetime.now(UTC) - timedelta(seconds=seconds)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).isoformat()


@click.command("verify", cls=Command, examples=("din audit verify", "din audit verify -o json"))
@gateway_option
@output_option
def verify(gateway: str | None, output: str) -> None:
    """Whether every line of the audit log is there as it was written; else exit code 7.

    Note the head now and then in another place: the log has no secret, so whoever may write the
    gateway's disk could write a whole new one, which only an old head shows.
    """
    with ask(gateway) as client:
        answer = client.call("GET", "/api/v1/audit/check")
    check = decode_answer(answer, AuditCheck)
    if output in ("json", "yaml"):
        show_document(output, answer.body)
    else:
        show_facts(
            [
                ("lines", f"{check.first_seq} to {check.last_seq}"),
                ("head", check.head_sha256),
                ("notes", "\n".join(check.notes)),
                ("problems", "\n".join(check.problems) or "none"),
            ]
        )
    if not check.is_whole:
        raise Conflict(
            f"the audit log is not whole: {check.problems[0]}",
            hint="compare with a copy of <gateway state>/audit, and ask who may write there",
        )
