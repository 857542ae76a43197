"""Who gets a certificate, who gets another one, and what is written down of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from enrolment_desk import (
    ADMIN,
    CLUSTER,
    DAY_MS,
    MACHINE,
    NODE_ID,
    OTHER_ID,
    Desk,
    at_desk,
    join_order,
    lapsed,
    named,
    renew_order,
)
from msgspec.structs import replace

from din.domain.enrolment import Enrolled
from din.domain.trust import Peer, PeerName
from din.errors import Busy, Conflict, Denied, Limited, TooLarge, UsageError
from din.gateway.nodes.enrolment import JOINS_AT_ONCE_MAX
from din.gateway.nodes.roll import Binding
from din.trust.requests import new_key_pem


def uri_in(enrolled: Enrolled) -> str:
    made = x509.load_pem_x509_certificate(enrolled.certificate.encode())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.UniformResourceIdentifier)[0]


def test_a_token_gets_a_certificate_of_the_cluster_for_a_day(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        enrolled = await desk.join(new_key_pem(), labels={"line": "4"})
        assert uri_in(enrolled) == f"spiffe://din/{CLUSTER}/node/{NODE_ID}"
        assert enrolled.ends_ms - enrolled.begins_ms == DAY_MS
        made = x509.load_pem_x509_certificate(enrolled.certificate.encode())
        assert made.not_valid_after_utc == datetime.fromtimestamp(enrolled.ends_ms // 1000, UTC)
        binding = desk.roll.binding(NODE_ID)
        assert binding is not None
        assert (binding.name, binding.labels) == ("edge-1", {"line": "4"})
        assert enrolled.name == "edge-1"

    at_desk(tmp_path, story)


@pytest.mark.parametrize(
    "labels", [{"line": "4\n5"}, {"line 4": "x"}, {"": "x"}, {"line": "\x1b[2J"}]
)
def test_a_token_gives_no_label_that_none_is(tmp_path: Path, labels: dict[str, str]) -> None:
    async def story(desk: Desk) -> None:
        with pytest.raises(UsageError, match="label"):
            await desk.token(labels=labels)
        with pytest.raises(TooLarge, match="17 labels"):
            await desk.token(labels={f"line-{number}": "x" for number in range(17)})
        assert await desk.tokens.list() == ()

    at_desk(tmp_path, story)


def test_nobody_joins_in_plain_text(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        order = join_order(*await desk.token())
        with pytest.raises(Denied, match="over TLS only"):
            await desk.enrolment.join(order, Peer("10.0.0.9"))
        assert await desk.enrolment.join(order, MACHINE)

    at_desk(tmp_path, story)


def test_an_id_that_works_here_without_a_certificate_is_not_given_away(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        desk.members[NODE_ID] = 3
        with pytest.raises(Conflict, match="is a member now"):
            await desk.join(new_key_pem())
        desk.members.clear()
        assert await desk.join(new_key_pem())

    at_desk(tmp_path, story)


def test_a_certificate_that_counts_is_renewed_for_its_key_and_no_other(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        key = new_key_pem()
        await desk.join(key)
        enrolled = await desk.enrolment.renew(renew_order(key), named())
        assert uri_in(enrolled).endswith(NODE_ID)
        with pytest.raises(Denied, match="another key than it joined with"):
            await desk.enrolment.renew(renew_order(new_key_pem()), named())
        assert await desk.audited("node.renew") == []  # what happens every day fills no log

    at_desk(tmp_path, story)


def test_a_machine_that_was_off_for_longer_than_a_day_renews_and_that_is_on_record(
    tmp_path: Path,
) -> None:
    async def story(desk: Desk) -> None:
        key = new_key_pem()
        ended_ms = (await desk.join(key)).ends_ms
        desk.now_ms = ended_ms + 30 * DAY_MS
        enrolled = await desk.enrolment.renew(renew_order(key), lapsed(ended_ms))
        assert uri_in(enrolled).endswith(NODE_ID)
        assert enrolled.begins_ms == desk.now_ms
        (fact,) = await desk.audited("node.renew")
        assert (fact.kind, fact.who, fact.address) == ("node", NODE_ID, "10.0.0.9")
        assert fact.after == {"late_s": 30 * 24 * 3600}

    at_desk(tmp_path, story)


def test_after_the_bound_a_token_is_needed_and_keeps_the_id(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        key = new_key_pem()
        ended_ms = (await desk.join(key)).ends_ms
        desk.now_ms = ended_ms + 30 * DAY_MS + 1
        with pytest.raises(Denied, match=r"ended 30\.0 days ago.*for 30 days") as told:
            await desk.enrolment.renew(renew_order(key), lapsed(ended_ms))
        assert "din node join -" in told.value.hint
        assert uri_in(await desk.join(key)).endswith(NODE_ID)

    at_desk(tmp_path, story)


def test_without_a_bound_nothing_is_renewed_late(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        strict = desk.made(tmp_path, late_renewal_ms=0)
        key = new_key_pem()
        ended_ms = (await desk.join(key)).ends_ms
        desk.now_ms = ended_ms + 1
        with pytest.raises(Denied, match="for 0 days"):
            await strict.renew(renew_order(key), lapsed(ended_ms))
        assert await strict.renew(renew_order(key), named())

    at_desk(tmp_path, story)


def test_late_renewal_is_refused_to_revoked_unknown_and_other_keys_and_that_is_on_record(
    tmp_path: Path,
) -> None:
    async def story(desk: Desk) -> None:
        key = new_key_pem()
        ended_ms = (await desk.join(key)).ends_ms
        desk.now_ms = ended_ms + DAY_MS
        cases = (
            (lapsed(ended_ms), new_key_pem(), "another key"),
            (lapsed(ended_ms, OTHER_ID), key, "another key"),
            (MACHINE, key, "only a node with a certificate"),
        )
        for peer, shown, reason in cases:
            with pytest.raises(Denied, match=reason):
                await desk.enrolment.renew(renew_order(shown), peer)
        gateway = lapsed(ended_ms)
        assert gateway.lapsed is not None
        name = PeerName(CLUSTER, "gateway", NODE_ID)
        posing = replace(gateway, lapsed=replace(gateway.lapsed, name=name))
        with pytest.raises(Denied, match="only a node"):
            await desk.enrolment.renew(renew_order(key), posing)
        await desk.roll.revoke(NODE_ID, "edge-1")
        with pytest.raises(Denied, match="edge-1 was revoked"):
            await desk.enrolment.renew(renew_order(key), lapsed(ended_ms))
        refused = await desk.audited("access.refuse")
        assert [each.target for each in refused] == [
            f"node.renew {NODE_ID}",
            f"node.renew {OTHER_ID}",
            f"node.renew {NODE_ID}",
        ]

    at_desk(tmp_path, story)


def test_a_certificate_that_has_ended_speaks_for_nobody(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.join(new_key_pem())
        with pytest.raises(Denied, match="showed no certificate"):
            desk.roll.check_claim(lapsed(0), NODE_ID)

    at_desk(tmp_path, story)


def test_an_id_stays_with_its_key_also_against_a_good_token(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        key = new_key_pem()
        await desk.join(key)
        with pytest.raises(Denied, match="held by another key"):
            await desk.join(new_key_pem())
        await desk.roll.revoke(NODE_ID, "edge-1")
        with pytest.raises(Denied, match="was revoked"):
            await desk.join(key)
        assert desk.roll.binding(OTHER_ID) is None
        await desk.roll.bind(OTHER_ID, Binding("key"))
        assert await desk.enrolment.tokens()

    at_desk(tmp_path, story)


def test_a_token_that_was_used_gives_no_label_back_that_was_taken(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        key, shown = new_key_pem(), await desk.token(labels={"line": "4", "trust": "high"})
        await desk.enrolment.join(join_order(*shown, key), MACHINE)
        await desk.roll.take_labels(NODE_ID, ["trust"])
        await desk.enrolment.join(join_order(*shown, key), MACHINE)
        assert desk.roll.labels_of(NODE_ID) == {"line": "4"}
        await desk.join(key, labels={"trust": "high"})
        assert desk.roll.labels_of(NODE_ID) == {"trust": "high"}

    at_desk(tmp_path, story)


def test_a_token_is_taken_back_and_that_is_on_record(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        token_id, secret = await desk.token()
        assert (await desk.enrolment.revoke_token(token_id[:5], ADMIN)).id == token_id
        with pytest.raises(Denied, match="is not known here"):
            await desk.enrolment.join(join_order(token_id, secret), MACHINE)
        (fact,) = await desk.audited("token.revoke")
        assert (fact.target, fact.address) == (token_id, "127.0.0.1")

    at_desk(tmp_path, story)


def test_refused_joins_are_counted_by_address_and_told_to_wait_and_fill_no_log(
    tmp_path: Path,
) -> None:
    async def story(desk: Desk) -> None:
        token_id, secret = await desk.token()
        wrong = join_order(token_id, "A" * 22)
        for _ in range(10):
            with pytest.raises(Denied, match="secret of join token"):
                await desk.enrolment.join(wrong, MACHINE)
        desk.uptime_ms += 17_000
        for order in (wrong, join_order("ffffffff", "A" * 22)) * 20:
            with pytest.raises(Limited, match=r"too many joins from 10\.0\.0\.9") as told:
                await desk.enrolment.join(order, MACHINE)
            assert (told.value.retry_after_s, told.value.http_status) == (43, 429)
            assert "A" * 22 not in told.value.story()
            assert "din token create" in told.value.hint
        assert len(await desk.audited("access.refuse")) == 10
        assert await desk.audited("audit.suppress") == []
        assert (desk.counted.count("token"), desk.counted.count("limited")) == (50, 40)
        # Others are told the reason, and a right token is taken also from there.
        other = replace(MACHINE, address="10.0.0.10")
        with pytest.raises(Denied, match="secret of join token"):
            await desk.enrolment.join(wrong, other)
        assert await desk.enrolment.join(join_order(token_id, secret), MACHINE)
        desk.uptime_ms += 43_000
        with pytest.raises(Denied, match="secret of join token"):
            await desk.enrolment.join(wrong, MACHINE)

    at_desk(tmp_path, story)


def test_no_more_machines_join_at_once_than_there_are_places(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        made = [await desk.token() for _ in range(JOINS_AT_ONCE_MAX + 1)]
        orders = [
            join_order(token_id, secret, node_id=f"{number:016x}")
            for number, (token_id, secret) in enumerate(made)
        ]
        outcomes = await asyncio.gather(
            *(desk.enrolment.join(order, MACHINE) for order in orders), return_exceptions=True
        )
        refused = [each for each in outcomes if isinstance(each, BaseException)]
        assert [type(each) for each in refused] == [Busy]
        assert await desk.enrolment.join(orders[-1], MACHINE)

    at_desk(tmp_path, story)
