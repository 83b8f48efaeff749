"""Names, keys, message ids, partitions."""

import itertools
import uuid
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emsworker.core.errors import InvalidName
from emsworker.core.ids import (
    check_name,
    encode_key,
    local_ip,
    new_claim_id,
    new_client_id,
    new_uid,
    parse_uid,
    uid_text,
)
from emsworker.core.partitioner import partition_of


@pytest.mark.parametrize("name", ["a", "Orders.v2", "_x", "0", "a:b-c.d_e", "x" * 190])
def test_good_names(name: str) -> None:
    assert check_name("topic", name) == name


@pytest.mark.parametrize("name", ["", " ", "a ", " a", "a b", "-a", ".a", "é", "x" * 191, "a\n", "a/b", "a%b", None, 7])
def test_names_that_a_collation_could_confuse_are_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="topic") as caught:
        check_name("topic", name)
    assert repr(name) in str(caught.value)


def test_keys_are_bytes_of_limited_length() -> None:
    assert encode_key("key", None) is None
    assert encode_key("key", "é") == "é".encode()
    assert encode_key("key", b"\x00\xff") == b"\x00\xff"
    assert encode_key("key", "x" * 255) == b"x" * 255
    for wrong in ("x" * 256, "é" * 128, 7, bytearray(b"x"), "\ud800"):
        with pytest.raises(InvalidName, match="key"):
            encode_key("key", wrong)  # type: ignore[arg-type]


def test_message_ids_are_uuid_version_7_and_sort_by_time() -> None:
    ids = [new_uid() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {uuid.UUID(bytes=uid).version for uid in ids} == {7}
    assert {uuid.UUID(bytes=uid).variant for uid in ids} == {uuid.RFC_4122}
    times = [uid[:6] for uid in ids]
    assert times == sorted(times)


def test_message_ids_of_a_process_sort_in_the_order_in_which_they_were_made() -> None:
    ids = [new_uid() for _ in range(20_000)]  # many in each millisecond; the counter begins anew after 4,294,967,296
    out_of_order = sum(later < earlier for earlier, later in itertools.pairwise(ids))
    assert out_of_order <= 1 and len(set(ids)) == len(ids)
    assert len({uid[10:] for uid in ids}) == len(ids), "its end is random"


@given(st.uuids())
def test_message_ids_round_trip(uid: uuid.UUID) -> None:
    assert parse_uid(uid_text(uid.bytes)) == uid.bytes


@pytest.mark.parametrize("text", ["", "x", "0190d6a4", None, 7])
def test_what_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidName, match="message id"):
        parse_uid(text)


def test_claim_ids_fit_into_63_bits_and_differ() -> None:
    ids = [new_claim_id() for _ in range(1000)]
    assert len(set(ids)) > 990  # 22 bits of chance within one millisecond
    assert all(0 < number < 1 << 63 for number in ids)


def test_client_ids_name_address_process_and_thread() -> None:
    ip, pid, token, tid = new_client_id("10.1.2.3").split("-")
    assert ip == "10.1.2.3"
    assert len(token) == 32
    assert pid.isdigit()
    assert tid.isdigit()
    assert local_ip("mysql://127.0.0.1:3306/d") == "127.0.0.1"
    assert local_ip(None)


@given(st.binary(max_size=255), st.integers(1, 64))
def test_the_partition_of_a_key_is_crc32(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == crc32(key) % partitions


def test_keys_spread() -> None:
    counts = [0] * 8
    for number in range(8000):
        counts[partition_of(f"key-{number}".encode(), 8)] += 1
    assert min(counts) > 800
