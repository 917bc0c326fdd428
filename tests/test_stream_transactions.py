"""Transactions are visible as a whole at commit or never, also while the stream is scaled."""

from __future__ import annotations

import pytest

from support.stream_worlds import values
from tidegate.errors import InputError, ParseError, SpecError, StateError, StreamError
from tidegate.kernel.streams.segments import PASSED
from tidegate.kernel.streams.watermarks import Mark
from tidegate.streams import Streams
from tidegate.streams.store import Conflict, Swap


def test_a_transaction_is_seen_whole_at_its_commit(store, clock):
    stream = Streams(store, clock).create("s", 3)
    with stream.transactional_writer("w") as w:
        transaction = w.begin()
        for n in range(10):
            transaction.write(str(n), f"k{n}")
        assert values(stream) == []
        assert w.written == 0
        done = transaction.commit(5)
        assert transaction.status == "committed"
        assert sorted(values(stream)) == [str(n).encode() for n in range(10)]
        assert done.noted
        assert stream.marks().get("w") == Mark(5, done.position)
        assert stream.description().segments.compare(stream.tail(), done.position) == PASSED
        assert w.written == 10


def test_what_is_aborted_is_never_seen(stream):
    with stream.transactional_writer("w") as w:
        transaction = w.begin()
        transaction.write("a", "k")
        transaction.abort()
        transaction.abort()
        for call in (transaction.commit, transaction.ping, lambda: transaction.write("b")):
            with pytest.raises(StreamError, match="the transaction is aborted"):
                call()
        left = w.begin()
        left.write("c", "k")
    assert left.status == "aborted", "closing ends what is open"
    assert values(stream) == []


def test_several_at_once_are_seen_in_the_order_of_their_commits(stream):
    with stream.transactional_writer("w") as w:
        one, two, three = (w.begin() for _ in range(3))
        one.write("1", "k")
        two.write("2", "k")
        three.write("3", "k")
        two.commit()
        three.abort()
        one.commit()
    assert values(stream) == [b"2", b"1"]


def test_a_transaction_ends_by_itself_when_nobody_pings(stream, clock):
    with stream.transactional_writer("w", timeout="10 s") as w:
        kept, lost = w.begin(), w.begin()
        for transaction in (kept, lost):
            transaction.write("a", "k")
        clock.pass_by(8)
        kept.ping()
        clock.pass_by(8)
        assert [kept.status, lost.status] == ["open", "timed out"]
        with pytest.raises(StreamError, match="timed out after 10 seconds without a ping"):
            lost.commit()
        kept.commit()
    assert values(stream) == [b"a"]


def test_a_writer_lets_go_of_transactions_that_nobody_ends(stream, clock):
    with stream.transactional_writer("w", timeout="10 s") as w:
        for _ in range(5):
            w.begin().write("a", "k")
            clock.pass_by(11)
        w.begin()
        assert len(w._open) == 1


def test_a_block_commits_at_its_end_and_aborts_where_it_fails(stream):
    with stream.transactional_writer("w") as w:
        with w.begin() as transaction:
            transaction.write("a", "k")
        broken = w.begin()
        broken.write("b", "k")
        with pytest.raises(InputError), broken:
            broken.write(None)
        assert broken.status == "aborted"
        with w.begin() as transaction:
            transaction.write("c", "k")
            transaction.commit(3)
        with w.begin() as transaction:
            transaction.abort()
    assert values(stream) == [b"a", b"c"]


def test_a_block_that_comes_to_its_end_too_late_says_so(stream, clock):
    with stream.transactional_writer("w", timeout="10 s") as w:
        transaction = w.begin()
        transaction.write("a", "k")
        clock.pass_by(11)
        assert transaction.status == "timed out"
        with pytest.raises(StreamError, match="timed out"), transaction:
            pass
    assert values(stream) == []


def test_a_time_that_goes_back_is_refused_for_the_mark_and_the_events_are_committed(stream):
    with stream.transactional_writer("w") as w:
        for time, noted in [(5, True), (4, False), (None, False), (5, True)]:
            transaction = w.begin()
            transaction.write(str(time), "k")
            assert transaction.commit(time).noted is noted
            assert stream.marks().get("w").time == 5
        assert w.written == 4
    assert len(values(stream)) == 4


def test_a_time_is_for_all_that_was_committed_before(stream):
    """Also for commits without a time: a reader past the watermark has all of them."""
    with stream.transactional_writer("w") as w:
        for n in range(20):
            with w.begin() as transaction:
                transaction.write("a", str(n))
        assert "w" not in stream.marks()
        w.begin().commit(7)
        assert stream.marks().get("w") == Mark(7, stream.tail())


def test_what_was_forgotten_is_for_all_that_was_committed_too(stream, streams, clock):
    with stream.transactional_writer("w") as w, stream.writer("other", linger=None) as other:
        with w.begin() as transaction:
            transaction.write("a", "k")
            transaction.commit(1)
        other.note_time(2)
        other.flush()
        controller = streams.controller(lease="1000 s")
        for time in (3, 4, 5):
            controller.round()
            clock.pass_by(31)
            other.note_time(time)
            other.flush()
        assert "w" not in stream.marks()
        assert w.written == 1
        w.begin().commit(9)
        assert stream.marks().get("w") == Mark(
            9, {name: at for name, at in stream.tail().items() if at}
        )


def test_the_count_of_what_was_written_goes_on_in_later_lives(stream):
    for life in range(3):
        with stream.transactional_writer("w") as w:
            assert w.written == 2 * life
            with w.begin() as transaction:
                transaction.write("a", "k")
                transaction.write("b", "k")
    assert "w" not in stream.marks()


def test_scaling_between_begin_and_commit(store, clock):
    stream = Streams(store, clock).create("s", 1)
    with stream.transactional_writer("w") as w:
        one, two = w.begin(), w.begin()
        one.write("1", "k")
        two.write("2", "k")
        one.commit(3)
        stream.scale(3)
        done = two.commit(4)
        assert "0" not in done.position
        assert stream.marks().get("w").time == 4
        stream.scale(1)
        w.begin().commit(5)
    assert values(stream) == [b"1", b"2"]


@pytest.mark.parametrize("who", ["scaling", "another life", "the controller"])
def test_what_happens_in_the_middle_of_a_commit_does_not_tear_it(stream, local, who):
    """The stream is scaled, or the writer's cell changes, between read and append."""

    def commit_another():
        with stream.transactional_writer("w").begin() as other:
            other.write("other", "k")
            other.commit(6)

    def meddle():
        if who == "scaling":
            stream.scale(5)
        elif who == "another life":
            commit_another()
        else:
            local.swap("s", Swap("mark/w", None, local.cell("s", "mark/w").version))

    with stream.transactional_writer("w") as w:
        with w.begin() as transaction:
            transaction.write("a", "k")
            transaction.commit(3)
        transaction = w.begin()
        for n in range(9):
            transaction.write(str(n), f"k{n}")
        local.before["append"] = [meddle]
        assert transaction.commit(5).noted is (who != "another life")
        assert stream.marks().get("w").time == (6 if who == "another life" else 5)
    found = values(stream)
    assert len(found) == len(set(found)) == 10 + (who == "another life")


def test_a_commit_that_fails_can_be_tried_again(stream, local):
    with stream.transactional_writer("w") as w:
        transaction = w.begin()
        transaction.write("a", "k")
        local.fail("append")
        with pytest.raises(StateError, match="disk is full"):
            transaction.commit(5)
        assert transaction.status == "open"
        assert "w" not in stream.marks()
        transaction.commit(5)
        assert w.written == 1
    assert values(stream) == [b"a"]


@pytest.mark.parametrize("error", [Conflict("another has it"), StateError("no answer")])
def test_a_commit_whose_answer_was_lost_is_not_made_twice(stream, local, error):
    def lost():
        raise error

    with stream.transactional_writer("w") as w:
        transaction = w.begin()
        transaction.write("a", "k")
        local.after["append"] = [lost]
        if isinstance(error, StateError):
            with pytest.raises(StateError, match="no answer"):
                transaction.commit(5)
        done = transaction.commit(5)
        assert done.noted
        assert done.position == {name: at for name, at in stream.tail().items() if at}
        assert w.written == 1
    assert values(stream) == [b"a"]


def test_bad_input_leaves_a_transaction_as_it_was(stream):
    with stream.transactional_writer("w") as w:
        transaction = w.begin()
        transaction.write("a", "k")
        with pytest.raises(InputError):
            transaction.write(None, "k")
        with pytest.raises(InputError):
            transaction.write("b", 3)
        with pytest.raises(ParseError):
            transaction.commit("yesterday")
        transaction.commit()
    assert values(stream) == [b"a"]
    with pytest.raises(SpecError, match="must be greater than 0"):
        stream.transactional_writer("w", timeout="0 s")
    with pytest.raises(SpecError, match="the name of a writer"):
        stream.transactional_writer("a b")


def test_closing_ends_the_writer_for_the_controller(stream):
    w = stream.transactional_writer("w")
    w.begin().commit(5)
    w.close()
    w.close()
    assert stream.marks().get("w") == Mark(5, {}, alive=False)
    with pytest.raises(StreamError, match="the writer is closed"):
        w.begin()
