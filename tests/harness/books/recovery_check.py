"""The judge of a recovery: whether what it shows can be true, given what a client knows.

The rules, per topic:

1. survivors were sent: byte-equal, with their tag, each once, at the seq that was acknowledged for it
2. a request survives whole or not at all (except for its deleted or evicted records)
3. an acknowledged request survives: class fsync always, class disk unless the machine failed, and any class
   if it survived an earlier failure of the machine, because it is on the media
4. each seq up to the head is live, evicted, deleted or in a reported lost range; reported ones are not live
5. a seq belongs forever to the record that was acknowledged or shown at it; the head never decreases
6. an acknowledged delete stays; one in doubt (or of a class that the crash can lose) happened wholly or not
   at all
7. what a recovery did not show, and what was refused, never appears later; reported losses stay reported

What was shown counts as acknowledged from then on: a reader has seen it.
"""

from __future__ import annotations

from tests.harness.books.ledger_entries import Deletion, Durability, Request, TopicContents, TopicPage


def check_recovery(
    page: TopicPage,
    sent: dict[bytes, tuple[Request, int]],
    contents: TopicContents,
    *,
    machine_failed: bool,
    exact: bool,
) -> None:
    """Raise AssertionError if a rule is broken; otherwise enter what was learned into the page."""
    alive = _check_survivors(page, sent, contents)
    standing = _check_deletions(page, alive, machine_failed)
    deleted = {seq for deletion in standing for seq in deletion.seqs}
    evicted = set(range(1, contents.evict_floor))
    _check_requests(page, alive, deleted | evicted, machine_failed)
    lost = contents.lost_seqs()
    holes = set(range(1, contents.head_seq + 1)) - alive - lost - deleted - evicted
    assert not holes, f"{page.name}: seqs {sorted(holes)} are missing without a reason"
    hidden = alive & (lost | evicted)
    assert not hidden, f"{page.name}: seqs {sorted(hidden)} are live and reported as lost or evicted"
    _check_ends(page, contents, alive)
    _check_losses(page, contents, lost, exact)
    _settle(page, contents, alive, standing, deleted | evicted, machine_failed)


def _must_survive(durability: Durability, on_media: bool, machine_failed: bool) -> bool:
    return on_media or durability == "fsync" or (durability == "disk" and not machine_failed)


def _check_survivors(
    page: TopicPage, sent: dict[bytes, tuple[Request, int]], contents: TopicContents
) -> set[int]:
    """Check rules 1, 5 and 7; learn the seqs of requests whose ack never arrived."""
    name = page.name
    seqs = [seq for seq, _, _ in contents.records]
    assert seqs == sorted(set(seqs)), f"{name}: seqs out of order or twice: {seqs}"
    for seq, payload, tag in contents.records:
        assert payload in sent, f"{name}: {payload!r} at seq {seq} was never sent"
        request, index = sent[payload]
        assert request.topic == name, f"{name}: {payload!r} at seq {seq} was sent to {request.topic}"
        assert tag == request.tags[index], (
            f"{name}: the tag of seq {seq} is {tag!r}, not {request.tags[index]!r}"
        )
        assert request.fate not in ("refused", "gone"), f"{name}: {request} returned at seq {seq}"
        if request.first_seq is None:
            request.first_seq = seq - index
        place = request.first_seq + index
        assert seq == place, f"{name}: {payload!r} is at seq {seq} and not at {place}: {request}"
        page.own(seq, payload)
    return set(seqs)


def _check_deletions(page: TopicPage, alive: set[int], machine_failed: bool) -> list[Deletion]:
    """Check rule 6; return the deletes that hold.

    A delete holds when none of its records is live; one that does not hold explains no missing record.
    """
    standing = []
    for deletion in page.deletions:
        survivors = alive & deletion.seqs
        if not survivors:
            standing.append(deletion)
            continue
        durability = deletion.durability or page.durability
        obliged = deletion.acked and _must_survive(durability, deletion.on_media, machine_failed)
        assert not obliged, f"{page.name}: seqs {sorted(survivors)} were deleted and are live"
    return standing


def _check_requests(page: TopicPage, alive: set[int], explained: set[int], machine_failed: bool) -> None:
    """Check rules 2 and 3."""
    for request in page.requests:
        seqs = set(request.seqs())
        missing = seqs - alive - explained
        if not missing:
            continue
        assert not seqs & alive, f"{page.name}: {request} survived in part, without seqs {sorted(missing)}"
        obliged = request.fate == "acked" and _must_survive(
            request.durability, request.on_media, machine_failed
        )
        assert not obliged, f"{page.name}: acked seqs {sorted(missing)} are missing: {request}"


def _check_ends(page: TopicPage, contents: TopicContents, alive: set[int]) -> None:
    """Check rule 5 and the floors."""
    name = page.name
    given = max(page.owners, default=0)
    assert contents.head_seq >= given, (
        f"{name}: the head is {contents.head_seq}, but seq {given} was assigned"
    )
    assert contents.head_seq >= page.last.head_seq, (
        f"{name}: the head fell from {page.last.head_seq}: {contents}"
    )
    first = min(alive, default=contents.head_seq + 1)
    ordered = contents.evict_floor <= contents.earliest_seq <= first
    assert ordered, (
        f"{name}: evict_floor {contents.evict_floor}, earliest {contents.earliest_seq}, alive from {first}"
    )
    assert contents.evict_floor >= page.last.evict_floor, (
        f"{name}: the floor fell from {page.last.evict_floor}"
    )
    may_evict = page.evicts or page.durability == "ephemeral"
    assert may_evict or contents.evict_floor <= 1, (
        f"{name}: evicted to {contents.evict_floor} without a cap or a TTL"
    )


def _check_losses(page: TopicPage, contents: TopicContents, lost: set[int], exact: bool) -> None:
    """Check rule 7, and that no loss is reported where the head is known."""
    name = page.name
    assert max(lost, default=0) <= contents.head_seq, (
        f"{name}: a loss beyond the head {contents.head_seq}: {contents.lost}"
    )
    before = page.last.lost_seqs()
    unsaid = before - lost - set(range(contents.evict_floor))
    assert not unsaid, f"{name}: seqs {sorted(unsaid)} were reported as lost before, but not now"
    if exact:
        made_up = lost - before
        assert not made_up, f"{name}: seqs {sorted(made_up)} are reported as lost, but the head can be known"
        # Seqs that were evicted before they were shown were assigned too.
        unseen = min(contents.evict_floor - 1, contents.head_seq)
        given = max(page.last.head_seq, *page.owners, unseen, 0)
        assert contents.head_seq == given, (
            f"{name}: the head is {contents.head_seq}, but it can be known to be {given}"
        )


def _settle(
    page: TopicPage,
    contents: TopicContents,
    alive: set[int],
    standing: list[Deletion],
    explained: set[int],
    machine_failed: bool,
) -> None:
    """Record the judged state as what happened."""
    page.last = contents
    page.deletions = standing
    for deletion in standing:
        deletion.acked = True
        deletion.on_media |= machine_failed
    for request in page.requests:
        if alive.intersection(request.seqs()):
            request.fate = "acked"
            request.on_media |= machine_failed
        elif request.fate == "unknown" or (
            request.fate == "acked" and not explained.issuperset(request.seqs())
        ):
            request.fate, request.first_seq, request.on_media = "gone", None, False
