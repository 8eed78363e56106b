"""Bytes, percentages and times as people write and read them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstay.units import format_bytes, format_time, parse_bytes, parse_percentage


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        ("17b", 17),
        ("17 B", 17),
        ("2kB", 2_000),
        ("2 KB", 2_000),
        ("2MB", 2_000_000),
        ("2GB", 2_000_000_000),
        ("2TB", 2_000_000_000_000),
        ("2KiB", 2_048),
        ("2MiB", 2_097_152),
        ("8GiB", 8_589_934_592),
        ("8 gib", 8_589_934_592),
        ("2TiB", 2_199_023_255_552),
        ("1.5 GiB", 1_610_612_736),
        ("0.1 kB", 100),
        ("0.29 kB", 290),
        ("  3\tMiB \n", 3_145_728),
        ("1.999", 1),
        ("0.0009 kB", 0),
        ("9007199254740993", 9_007_199_254_740_993),
        ("0" * 63 + "1", 1),
    ],
)
def test_size(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1.5 apples",
        "GiB",
        "-1",
        "+1",
        "- 1 GiB",
        "1e9",
        "1,5 GiB",
        "1_000",
        ".5 GiB",
        "1. GiB",
        "1.2.3",
        "1 GiB extra",
        "1 G",
        "1 PiB",
        "1 Gi B",
        "50%",
        "nan",
        "inf",
        "٣",  # a digit elsewhere, not here
        "1\x00",
        "0" * 64 + "1",
        "9" * 10_000,
    ],
)
def test_not_a_size(text: str) -> None:
    assert parse_bytes(text) is None


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("50%", Fraction(1, 2)),
        ("100 %", Fraction(1)),
        ("0%", Fraction(0)),
        (" 33.3 % ", Fraction(333, 1_000)),
        ("250%", Fraction(5, 2)),
        ("0" * 62 + "1%", Fraction(1, 100)),
    ],
)
def test_percentage(text: str, share: Fraction) -> None:
    assert parse_percentage(text) == share


@pytest.mark.parametrize(
    "text", ["", "%", "50", "8GiB", "-5%", ".5%", "5.%", "5%%", "5% of it", "x5%", "0" * 63 + "1%"]
)
def test_not_a_percentage(text: str) -> None:
    assert parse_percentage(text) is None


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1_023, "1023 bytes"),
        (1_024, "1.00 KiB"),
        (1_536, "1.50 KiB"),
        (1_048_575, "1.00 MiB"),
        (1_048_576, "1.00 MiB"),
        (1_073_741_823, "1.00 GiB"),
        (1_073_741_824, "1.00 GiB"),
        (1_965_000_000, "1.83 GiB"),
        (1_099_511_627_776, "1.00 TiB"),
        (3_298_534_883_328_000, "3000.00 TiB"),
        (1, "1 byte"),
        (-5, "-5 bytes"),
        (-2_048, "-2.00 KiB"),
    ],
)
def test_size_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1 µs"),
        (1_250, "1.25 µs"),
        (1_000_000, "1 ms"),
        (47_420_000, "47.4 ms"),
        (1_000_000_000, "1 s"),
        (12_340_000_000, "12.3 s"),
        (0.4, "0 ns"),
        (-2_500_000, "-2.5 ms"),
    ],
)
def test_time_for_people(nanoseconds: float, text: str) -> None:
    assert format_time(nanoseconds) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"), [(999_700, "1 ms"), (1_234_000_000_000, "1234 s")]
)
def test_time_for_people_has_no_exponent(nanoseconds: int, text: str) -> None:
    assert format_time(nanoseconds) == text


@given(st.integers(0, 2**60))
def test_whole_bytes_survive(size: int) -> None:
    assert parse_bytes(str(size)) == size
    assert parse_bytes(f"{size} B") == size


@given(st.integers(0, 2**50))
def test_size_for_people_reads_back_within_rounding(size: int) -> None:
    back = parse_bytes(format_bytes(size).removesuffix("s").removesuffix("yte"))
    assert back is not None
    assert abs(back - size) <= size * 0.005 + 1


@given(st.text(max_size=80))
def test_any_text_is_a_size_or_none(text: str) -> None:
    size = parse_bytes(text)
    assert size is None or size >= 0
    share = parse_percentage(text)
    assert share is None or share >= 0
