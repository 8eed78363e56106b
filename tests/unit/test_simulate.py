"""The referee, by hand-worked digits: every number below was added up on paper from Table 1.

Sizes are chosen so that a sum says what it is made of. Within one decimal place they are 1, 2,
4 and 8, so a wrong, missing or doubled term shows in its own digit; times are powers of ten,
so an end time counts the operations that ran.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest

from chainstay.errors import InvalidScheduleError, UnknownMethodError
from chainstay.profiles import ChainProfile, Stage
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.validation.simulate import simulate

ALL_RULES = "table1 tape free"


COLUMNS = {
    "a": "output_bytes",
    "δ": "gradient_bytes",
    "saved": "saved_bytes",
    "of": "forward_overhead_bytes",
    "ob": "backward_overhead_bytes",
    "uf": "forward_time",
    "ub": "backward_time",
}


def _stage(name: str, cells: list[str]) -> Stage:
    costs: Any = dict(zip(COLUMNS.values(), map(int, cells), strict=True))
    return Stage(name=name, **costs)


def chain(table: str) -> ChainProfile:
    """A chain from a header line, a line for the input (a and δ) and one line per stage."""
    header, source, *rows = (line.split() for line in table.strip().splitlines())
    assert header == list(COLUMNS)
    assert (source[0], len(source)) == ("input", 3)
    return ChainProfile(
        input_bytes=int(source[1]),
        input_gradient_bytes=int(source[2]),
        stages=tuple(_stage(name, cells) for name, *cells in rows),
    )


ONE = chain("""
       a      δ   saved      of       ob  uf  ub
input  3     40
F0     5  7_000     600  20_000  100_000   1  10
""")

TWO = chain("""
       a      δ   saved      of       ob  uf     ub
input  1    100
F0     2    200      10  10_000  100_000   1    100
F1     4  1_000      20  20_000  200_000  10  1_000
""")

THREE = chain("""
       a       δ  saved       of         ob   uf       ub
input  1   1_000
F0     2   2_000    100  100_000  1_000_000    1    1_000
F1     4   4_000    200  200_000  2_000_000   10   10_000
F2     8  10_000    400  400_000  4_000_000  100  100_000
""")

FOUR = chain("""
        a        δ  saved         of          ob     uf          ub
input   1   10_000
F0      2   20_000    100  1_000_000  10_000_000      1      10_000
F1      4   40_000    200  2_000_000  20_000_000     10     100_000
F2      8   80_000    400  4_000_000  40_000_000    100   1_000_000
F3     16  100_000    800  8_000_000  80_000_000  1_000  10_000_000
""")

PEAK_IN_FIRST_FORWARD = chain("""
       a    δ  saved     of  ob  uf  ub
input  1  100
F0     2  200     10  5_000   0   3   5
F1     0  400     20      0   0   4   6
""")

PEAK_IN_LAST_FORWARD = chain("""
       a    δ  saved     of  ob  uf  ub
input  1  100
F0     2  200     10      0   0   3   5
F1     0  400     20  5_000   0   4   6
""")

PEAK_IN_FIRST_BACKWARD = chain("""
       a    δ  saved     of     ob  uf  ub
input  1  100
F0     2  200     10      0      0   3   5
F1     0  400     20      0  5_000   4   6
""")

PEAK_IN_LAST_BACKWARD = chain("""
       a    δ  saved     of     ob  uf  ub
input  1  100
F0     2  200     10      0  5_000   3   5
F1     0  400     20      0      0   4   6
""")

HEAVY_LOSS_GRADIENT = chain("""
         a      δ  saved  of  ob  uf  ub
input    1      2
F0     500      3    500   0   0   1   2
F1      20      4     20   0   0   1   2
F2       0  9_000     30   0   0   1   2
""")

HEAVY_INPUT_GRADIENT = chain("""
       a      δ  saved  of  ob  uf  ub
input  1  9_000
F0     2     20    100   0   0   1   2
F1     0     40    200   0   0   4   8
""")

FREE_LOSS = chain("""
        a       δ  saved  of  ob  uf  ub
input   7   1_000
F0     10  20_000    100   0   0   2   3
F1      0       0      0   0   0   0   0
""")

SAVED_BELOW_OUTPUT = chain("""
         a        δ  saved  of  ob  uf  ub
input    7    1_000
F0     100   20_000     10   0   0   1   3
F1      60  300_000      5   0   0   2   4
""")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A schedule and, per operation, memory during it, memory after it and its end time."""

    name: str
    profile: ChainProfile
    rules: str = ALL_RULES
    rows: str
    peak: int
    makespan: int


CASES = (
    Case(
        name="n=1 keep all",
        profile=ONE,
        rows="""
             during   a    s      g  end
        Fa0  27_603   3  600  7_000    1   # 3 + 600 + 7_000 + 20_000
        B0  107_643   0    0     40   11   # 3 + 600 + 7_000 + 40 + 100_000
        """,
        peak=107_643,
        makespan=11,
    ),
    Case(
        name="n=1 the output of the loss is kept to the end",
        profile=ONE,
        rows="""
             during   a    s      g  end
        Fc0  27_008   8    0  7_000    1   # 3+5 + 7_000 + 20_000
        Fa0  27_608   8  600  7_000    2   # 8 + 600 + 7_000 + 20_000
        B0  107_648   5    0     40   12   # 8 + 600 + 7_000 + 40 + 100_000; a0 goes, a1 stays
        """,
        peak=107_648,
        makespan=12,
    ),
    Case(
        name="n=2 keep all: Fa1 reads a1 inside the saved data of stage 0",
        profile=TWO,
        rows="""
             during   a   s      g    end
        Fa0  11_011   1  10  1_000      1   # 1 + 10 + 1_000 + 10_000
        Fa1  21_031   1  30  1_000     11   # 1 + 10+20 + 1_000 + 20_000
        B1  201_231   1  10    200  1_011   # 1 + 30 + 1_000+200 + 200_000
        B0  100_311   0   0    100  1_111   # 1 + 10 + 200+100 + 100_000
        """,
        peak=201_231,
        makespan=1_111,
    ),
    Case(
        name="n=2 checkpoint of the input",
        profile=TWO,
        rows="""
             during   a   s      g    end
        Fc0  11_003   3   0  1_000      1   # 1+2 + 1_000 + 10_000
        Fa1  21_023   3  20  1_000     11   # 3 + 20 + 1_000 + 20_000
        B1  201_223   1   0    200  1_011   # 3 + 20 + 1_000+200 + 200_000
        Fa0  10_211   1  10    200  1_012   # 1 + 10 + 200 + 10_000
        B0  100_311   0   0    100  1_112   # 1 + 10 + 200+100 + 100_000
        """,
        peak=201_223,
        makespan=1_112,
    ),
    Case(
        name="n=2 a1 both plain and saved: B1 consumes the plain one only",
        profile=TWO,
        rows="""
             during   a   s      g    end
        Fc0  11_003   3   0  1_000      1
        Fa0  11_013   3  10  1_000      2   # 3 + 10 + 1_000 + 10_000
        Fa1  21_033   3  30  1_000     12   # 3 + 30 + 1_000 + 20_000
        B1  201_233   1  10    200  1_012   # 3 + 30 + 1_000+200 + 200_000; a1 = 2 goes
        B0  100_311   0   0    100  1_112
        """,
        peak=201_233,
        makespan=1_112,
    ),
    Case(
        name="n=2 what is stored already is computed again, and counted once",
        profile=TWO,
        rows="""
             during   a   s      g    end
        Fc0  11_003   3   0  1_000      1
        Fc0  11_003   3   0  1_000      2
        Fa0  11_013   3  10  1_000      3
        Fa0  11_013   3  10  1_000      4
        Fa1  21_033   3  30  1_000     14
        Fa1  21_033   3  30  1_000     24
        B1  201_233   1  10    200  1_024
        B0  100_311   0   0    100  1_124
        """,
        peak=201_233,
        makespan=1_124,
    ),
    Case(
        name="n=2 a forward after its own backward",
        profile=TWO,
        rows="""
             during   a   s      g    end
        Fa0  11_011   1  10  1_000      1
        Fa1  21_031   1  30  1_000     11
        B1  201_231   1  10    200  1_011
        Fc1  20_215   5  10    200  1_021   # 1+4 + 10 + 200 + 20_000
        B0  100_315   4   0    100  1_121   # 5 + 10 + 200+100 + 100_000
        """,
        peak=201_231,
        makespan=1_121,
    ),
    Case(
        name="n=2 saved data that no backward will use stays to the end",
        profile=TWO,
        rules="table1 free",
        rows="""
             during   a   s      g    end
        Fa0  11_011   1  10  1_000      1
        Fa1  21_031   1  30  1_000     11
        B1  201_231   1  10    200  1_011
        Fa1  20_231   1  30    200  1_021   # 1 + 30 + 200 + 20_000
        B0  100_331   0  20    100  1_121   # 1 + 30 + 200+100 + 100_000
        """,
        peak=201_231,
        makespan=1_121,
    ),
    Case(
        name="n=3 Fn replaces its input, then the rest is kept",
        profile=THREE,
        rows="""
               during  a    s       g      end
        Fc0   110_003  3    0  10_000        1   # 1+2 + 10_000 + 100_000
        Fn1   210_007  5    0  10_000       11   # 1+2+4 + 10_000 + 200_000; a1 = 2 goes
        Fa2   410_405  5  400  10_000      111   # 5 + 400 + 10_000 + 400_000
        B2  4_014_405  1    0   4_000  100_111   # 5 + 400 + 10_000+4_000 + 4_000_000
        Fa0   104_101  1  100   4_000  100_112   # 1 + 100 + 4_000 + 100_000
        Fa1   204_301  1  300   4_000  100_122   # 1 + 100+200 + 4_000 + 200_000
        B1  2_006_301  1  100   2_000  110_122   # 1 + 300 + 4_000+2_000 + 2_000_000
        B0  1_003_101  0    0   1_000  111_122   # 1 + 100 + 2_000+1_000 + 1_000_000
        """,
        peak=4_014_405,
        makespan=111_122,
    ),
    Case(
        name="n=3 all is recomputed from the input",
        profile=THREE,
        rows="""
               during  a    s       g      end
        Fc0   110_003  3    0  10_000        1
        Fn1   210_007  5    0  10_000       11
        Fa2   410_405  5  400  10_000      111
        B2  4_014_405  1    0   4_000  100_111
        Fc0   104_003  3    0   4_000  100_112   # 1+2 + 4_000 + 100_000
        Fa1   204_203  3  200   4_000  100_122   # 3 + 200 + 4_000 + 200_000
        B1  2_006_203  1    0   2_000  110_122   # 3 + 200 + 4_000+2_000 + 2_000_000
        Fa0   102_101  1  100   2_000  110_123   # 1 + 100 + 2_000 + 100_000
        B0  1_003_101  0    0   1_000  111_123
        """,
        peak=4_014_405,
        makespan=111_123,
    ),
    Case(
        name="n=3 Fc reads its input inside saved data",
        profile=THREE,
        rows="""
               during  a    s       g      end
        Fa0   110_101  1  100  10_000        1   # 1 + 100 + 10_000 + 100_000
        Fc1   210_105  5  100  10_000       11   # 1+4 + 100 + 10_000 + 200_000
        Fa2   410_505  5  500  10_000      111   # 5 + 100+400 + 10_000 + 400_000
        B2  4_014_505  1  100   4_000  100_111   # 5 + 500 + 10_000+4_000 + 4_000_000
        Fa1   204_301  1  300   4_000  100_121
        B1  2_006_301  1  100   2_000  110_121
        B0  1_003_101  0    0   1_000  111_121
        """,
        peak=4_014_505,
        makespan=111_121,
    ),
    Case(
        name="n=3 the output of the loss takes memory until the end",
        profile=THREE,
        rows="""
               during  a    s       g      end
        Fa0   110_101  1  100  10_000        1
        Fa1   210_301  1  300  10_000       11   # 1 + 300 + 10_000 + 200_000
        Fc2   410_309  9  300  10_000      111   # 1+8 + 300 + 10_000 + 400_000
        Fa2   410_709  9  700  10_000      211   # 9 + 700 + 10_000 + 400_000
        B2  4_014_709  9  300   4_000  100_211   # 9 + 700 + 10_000+4_000 + 4_000_000
        B1  2_006_309  9  100   2_000  110_211   # 9 + 300 + 4_000+2_000 + 2_000_000
        B0  1_003_109  8    0   1_000  111_211   # 9 + 100 + 2_000+1_000 + 1_000_000
        """,
        peak=4_014_709,
        makespan=111_211,
    ),
    Case(
        name="n=3 Fn with its output stored already only drops its input",
        profile=THREE,
        rows="""
               during  a    s       g      end
        Fc0   110_003  3    0  10_000        1
        Fc1   210_007  7    0  10_000       11   # 1+2+4 + 10_000 + 200_000
        Fn1   210_007  5    0  10_000       21   # 1+2+4 once; a1 = 2 goes
        Fa2   410_405  5  400  10_000      121
        B2  4_014_405  1    0   4_000  100_121
        Fa0   104_101  1  100   4_000  100_122
        Fa1   204_301  1  300   4_000  100_132
        B1  2_006_301  1  100   2_000  110_132
        B0  1_003_101  0    0   1_000  111_132
        """,
        peak=4_014_405,
        makespan=111_132,
    ),
    Case(
        name="n=3 Fn takes the input of saved data, which B1 gets back in time",
        profile=THREE,
        rules="table1 free",
        rows="""
               during  a    s       g      end
        Fc0   110_003  3    0  10_000        1
        Fa1   210_203  3  200  10_000       11   # 3 + 200 + 10_000 + 200_000
        Fn1   210_207  5  200  10_000       21   # 1+2+4 + 200 + 10_000 + 200_000
        Fa2   410_605  5  600  10_000      121   # 5 + 600 + 10_000 + 400_000
        B2  4_014_605  1  200   4_000  100_121   # 5 + 600 + 10_000+4_000 + 4_000_000
        Fc0   104_203  3  200   4_000  100_122   # 1+2 + 200 + 4_000 + 100_000
        B1  2_006_203  1    0   2_000  110_122
        Fa0   102_101  1  100   2_000  110_123
        B0  1_003_101  0    0   1_000  111_123
        """,
        peak=4_014_605,
        makespan=111_123,
    ),
    Case(
        name="n=3 Da of an activation that saved data holds too",
        profile=THREE,
        rules="tape free",
        rows="""
               during  a    s       g      end
        Fc0   110_003  3    0  10_000        1
        Fa0   110_103  3  100  10_000        2   # 3 + 100 + 10_000 + 100_000
        Da1    10_103  1  100  10_000        2   # 3 + 100 + 10_000, and no time
        Fa1   210_301  1  300  10_000       12
        Fa2   410_701  1  700  10_000      112   # 1 + 700 + 10_000 + 400_000
        B2  4_014_701  1  300   4_000  100_112   # 1 + 700 + 10_000+4_000 + 4_000_000
        B1  2_006_301  1  100   2_000  110_112
        B0  1_003_101  0    0   1_000  111_112
        """,
        peak=4_014_701,
        makespan=111_112,
    ),
    Case(
        name="n=3 Db of saved data that is made again later",
        profile=THREE,
        rules="tape free",
        rows="""
               during  a    s       g      end
        Fc0   110_003  3    0  10_000        1
        Fc1   210_007  7    0  10_000       11
        Fa1   210_207  7  200  10_000       21   # 7 + 200 + 10_000 + 200_000
        Db1    10_207  7    0  10_000       21   # 7 + 200 + 10_000, and no time
        Fa2   410_407  7  400  10_000      121   # 7 + 400 + 10_000 + 400_000
        B2  4_014_407  3    0   4_000  100_121   # 7 + 400 + 10_000+4_000 + 4_000_000
        Fa1   204_203  3  200   4_000  100_131
        B1  2_006_203  1    0   2_000  110_131
        Fa0   102_101  1  100   2_000  110_132
        B0  1_003_101  0    0   1_000  111_132
        """,
        peak=4_014_407,
        makespan=111_132,
    ),
    Case(
        name="n=3 Db orphans saved data, whose input Fa makes again before its B",
        profile=THREE,
        rules="free",
        rows="""
               during  a    s       g      end
        Fa0   110_101  1  100  10_000        1
        Fa1   210_301  1  300  10_000       11
        Db0    10_301  1  200  10_000       11   # 1 + 300 + 10_000
        Fa2   410_601  1  600  10_000      111   # 1 + 600 + 10_000 + 400_000
        B2  4_014_601  1  200   4_000  100_111   # 1 + 600 + 10_000+4_000 + 4_000_000
        Fa0   104_301  1  300   4_000  100_112   # 1 + 300 + 4_000 + 100_000
        B1  2_006_301  1  100   2_000  110_112
        B0  1_003_101  0    0   1_000  111_112
        """,
        peak=4_014_601,
        makespan=111_112,
    ),
    Case(
        name="n=3 Da orphans saved data, whose input Fc makes again before its B",
        profile=THREE,
        rules="free",
        rows="""
               during  a    s       g      end
        Fc0   110_003  3    0  10_000        1
        Fa1   210_203  3  200  10_000       11
        Da1    10_203  1  200  10_000       11   # 3 + 200 + 10_000
        Fa2   410_601  1  600  10_000      111
        B2  4_014_601  1  200   4_000  100_111
        Fc0   104_203  3  200   4_000  100_112
        B1  2_006_203  1    0   2_000  110_112
        Fa0   102_101  1  100   2_000  110_113
        B0  1_003_101  0    0   1_000  111_113
        """,
        peak=4_014_601,
        makespan=111_113,
    ),
    Case(
        name="n=4 two checkpoints",
        profile=FOUR,
        rows="""
                during   a    s        g         end
        Fc0  1_100_003   3    0  100_000           1   # 1+2 + 100_000 + 1_000_000
        Fn1  2_100_007   5    0  100_000          11   # 1+2+4; a1 = 2 goes
        Fc2  4_100_013  13    0  100_000         111   # 1+4+8
        Fa3  8_100_813  13  800  100_000       1_111   # 13 + 800 + 100_000 + 8_000_000
        B3  80_180_813   5    0   80_000  10_001_111   # + 80_000 + 80_000_000; a3 = 8 goes
        Fa2  4_080_405   5  400   80_000  10_001_211   # 5 + 400 + 80_000 + 4_000_000
        B2  40_120_405   1    0   40_000  11_001_211   # 5 + 400 + 120_000 + 40_000_000
        Fa0  1_040_101   1  100   40_000  11_001_212   # 1 + 100 + 40_000 + 1_000_000
        Fa1  2_040_301   1  300   40_000  11_001_222   # 1 + 300 + 40_000 + 2_000_000
        B1  20_060_301   1  100   20_000  11_101_222   # 1 + 300 + 60_000 + 20_000_000
        B0  10_030_101   0    0   10_000  11_111_222   # 1 + 100 + 30_000 + 10_000_000
        """,
        peak=80_180_813,
        makespan=11_111_222,
    ),
    Case(
        name="n=4 Fn after Fn, then Fc out of saved data",
        profile=FOUR,
        rows="""
                during   a    s        g         end
        Fc0  1_100_003   3    0  100_000           1
        Fn1  2_100_007   5    0  100_000          11
        Fn2  4_100_013   9    0  100_000         111   # 1+4+8; a2 = 4 goes
        Fa3  8_100_809   9  800  100_000       1_111   # 9 + 800 + 100_000 + 8_000_000
        B3  80_180_809   1    0   80_000  10_001_111   # 9 + 800 + 180_000 + 80_000_000
        Fa0  1_080_101   1  100   80_000  10_001_112   # 1 + 100 + 80_000 + 1_000_000
        Fc1  2_080_105   5  100   80_000  10_001_122   # 1+4 + 100 + 80_000 + 2_000_000
        Fa2  4_080_505   5  500   80_000  10_001_222   # 5 + 500 + 80_000 + 4_000_000
        B2  40_120_505   1  100   40_000  11_001_222   # 5 + 500 + 120_000 + 40_000_000
        Fa1  2_040_301   1  300   40_000  11_001_232
        B1  20_060_301   1  100   20_000  11_101_232
        B0  10_030_101   0    0   10_000  11_111_232
        """,
        peak=80_180_809,
        makespan=11_111_232,
    ),
    Case(
        name="n=4 Db in the middle of what is kept",
        profile=FOUR,
        rules="free",
        rows="""
                during  a      s        g         end
        Fa0  1_100_101  1    100  100_000           1   # 1 + 100 + 100_000 + 1_000_000
        Fa1  2_100_301  1    300  100_000          11   # 1 + 300 + 100_000 + 2_000_000
        Fa2  4_100_701  1    700  100_000         111   # 1 + 700 + 100_000 + 4_000_000
        Db1    100_701  1    500  100_000         111   # 1 + 700 + 100_000
        Fa3  8_101_301  1  1_300  100_000       1_111   # 1 + 1_300 + 100_000 + 8_000_000
        B3  80_181_301  1    500   80_000  10_001_111   # 1 + 1_300 + 180_000 + 80_000_000
        Fa1  2_080_701  1    700   80_000  10_001_121   # 1 + 700 + 80_000 + 2_000_000
        B2  40_120_701  1    300   40_000  11_001_121   # 1 + 700 + 120_000 + 40_000_000
        B1  20_060_301  1    100   20_000  11_101_121   # 1 + 300 + 60_000 + 20_000_000
        B0  10_030_101  0      0   10_000  11_111_121
        """,
        peak=80_181_301,
        makespan=11_111_121,
    ),
    Case(
        name="the overhead of the first forward decides the peak, and leaves with it",
        profile=PEAK_IN_FIRST_FORWARD,
        rows="""
             during   a   s    g  end
        Fa0   5_411   1  10  400    3   # 1 + 10 + 400 + 5_000
        Fa1     431   1  30  400    7   # 1 + 30 + 400
        B1      631   1  10  200   13   # 1 + 30 + 400+200
        B0      311   0   0  100   18   # 1 + 10 + 200+100
        """,
        peak=5_411,
        makespan=18,
    ),
    Case(
        name="the overhead of the last forward decides the peak",
        profile=PEAK_IN_LAST_FORWARD,
        rows="""
             during   a   s    g  end
        Fa0     411   1  10  400    3
        Fa1   5_431   1  30  400    7   # 1 + 30 + 400 + 5_000
        B1      631   1  10  200   13
        B0      311   0   0  100   18
        """,
        peak=5_431,
        makespan=18,
    ),
    Case(
        name="the overhead of the first backward decides the peak",
        profile=PEAK_IN_FIRST_BACKWARD,
        rows="""
             during   a   s    g  end
        Fa0     411   1  10  400    3
        Fa1     431   1  30  400    7
        B1    5_631   1  10  200   13   # 1 + 30 + 400+200 + 5_000
        B0      311   0   0  100   18
        """,
        peak=5_631,
        makespan=18,
    ),
    Case(
        name="the overhead of the last backward decides the peak",
        profile=PEAK_IN_LAST_BACKWARD,
        rows="""
             during   a   s    g  end
        Fa0     411   1  10  400    3
        Fa1     431   1  30  400    7
        B1      631   1  10  200   13
        B0    5_311   0   0  100   18   # 1 + 10 + 200+100 + 5_000
        """,
        peak=5_311,
        makespan=18,
    ),
    Case(
        name="the gradient of the loss is there from the start and decides the peak",
        profile=HEAVY_LOSS_GRADIENT,
        rows="""
             during    a    s      g  end
        Fc0   9_501  501    0  9_000    1   # 1+500 + 9_000
        Fn1   9_521   21    0  9_000    2   # 1+500+20 + 9_000; a1 = 500 goes
        Fa2   9_051   21   30  9_000    3   # 21 + 30 + 9_000
        B2    9_055    1    0      4    5   # 21 + 30 + 9_000+4
        Fc0     505  501    0      4    6   # 501 + 4
        Fa1     525  501   20      4    7   # 501 + 20 + 4
        B1      528    1    0      3    9   # 501 + 20 + 4+3
        Fa0     504    1  500      3   10   # 1 + 500 + 3
        B0      506    0    0      2   12   # 1 + 500 + 3+2
        """,
        peak=9_521,
        makespan=12,
    ),
    Case(
        name="the gradient of the input comes last and decides the peak",
        profile=HEAVY_INPUT_GRADIENT,
        rows="""
             during  a    s      g  end
        Fa0     141  1  100     40    1   # 1 + 100 + 40
        Fa1     341  1  300     40    5   # 1 + 300 + 40
        B1      361  1  100     20   13   # 1 + 300 + 40+20
        B0    9_121  0    0  9_000   15   # 1 + 100 + 20+9_000
        """,
        peak=9_121,
        makespan=15,
    ),
    Case(
        name="a loss that costs nothing",
        profile=FREE_LOSS,
        rows="""
             during  a    s       g  end
        Fa0     107  7  100       0    2   # 7 + 100
        Fa1     107  7  100       0    2
        B1   20_107  7  100  20_000    2   # 7 + 100 + 0+20_000
        B0   21_107  0    0   1_000    5   # 7 + 100 + 20_000+1_000
        """,
        peak=21_107,
        makespan=5,
    ),
    Case(
        name="saved data below the output counts as it is given",
        profile=SAVED_BELOW_OUTPUT,
        rows="""
             during  a   s        g  end
        Fa0 300_017  7  10  300_000    1   # 7 + 10 + 300_000
        Fa1 300_022  7  15  300_000    3   # 7 + 10+5 + 300_000
        B1  320_022  7  10   20_000    7   # 7 + 15 + 300_000+20_000
        B0   21_017  0   0    1_000   10   # 7 + 10 + 20_000+1_000
        """,
        peak=320_022,
        makespan=10,
    ),
)

RUNS = [
    pytest.param(case, rules, id=f"{case.name} [{rules}]")
    for case in CASES
    for rules in case.rules.split()
]


def cells_of(rows: str) -> list[list[str]]:
    """The table without its header line and its comments."""
    return [line.partition("#")[0].split() for line in rows.strip().splitlines()[1:]]


@pytest.mark.parametrize(("case", "rules"), RUNS)
def test_replay_digit_by_digit(case: Case, rules: str) -> None:
    rows = cells_of(case.rows)
    expected = [(op, *map(int, numbers)) for op, *numbers in rows]
    schedule = Schedule.parse(" ".join(op for op, *_ in rows))
    replay = simulate(case.profile, schedule, discards=rules)
    found = [
        (str(s.op), s.during_bytes, s.activation_bytes, s.saved_bytes, s.gradient_bytes, s.end)
        for s in replay.timeline
    ]
    assert found == expected
    assert (replay.peak_bytes, replay.makespan) == (case.peak, case.makespan)


@pytest.mark.parametrize(
    ("case", "rules"),
    [
        pytest.param(case, rules, id=f"{case.name} [{rules}]")
        for case in CASES
        for rules in ALL_RULES.split()
        if rules not in case.rules.split()
    ],
)
def test_rules_refuse_what_only_others_allow(case: Case, rules: str) -> None:
    schedule = Schedule.parse(" ".join(op for op, *_ in cells_of(case.rows)))
    with pytest.raises(InvalidScheduleError, match=r"is a discard|removes the input of stage"):
        simulate(case.profile, schedule, discards=rules)


def test_memory_after_an_operation_is_the_sum_of_its_parts() -> None:
    timeline = simulate(TWO, Schedule.parse("Fc0 Fa1 B1 Fa0 B0")).timeline
    # 3 + 0 + 1_000; 3 + 20 + 1_000; 1 + 0 + 200; 1 + 10 + 200; 0 + 0 + 100
    assert [snapshot.after_bytes for snapshot in timeline] == [1_003, 1_023, 201, 211, 100]


def test_each_operation_starts_when_the_one_before_ends() -> None:
    timeline = simulate(TWO, Schedule.parse("Fc0 Da1 Fc0 Fa1 B1 Fa0 B0"), discards="tape").timeline
    spans = [(snapshot.start, snapshot.end) for snapshot in timeline]
    assert spans == [
        (0, 1),
        (1, 1),
        (1, 2),
        (2, 12),
        (12, 1_012),
        (1_012, 1_013),
        (1_013, 1_113),
    ]


def test_replay_is_frozen() -> None:
    replay = simulate(ONE, Schedule.parse("Fa0 B0"))
    with pytest.raises(FrozenInstanceError):
        replay.peak_bytes = 0  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        replay.timeline[0].end = 0  # type: ignore[misc]


def test_rules_are_table1_unless_named() -> None:
    with pytest.raises(InvalidScheduleError, match="Da1 is a discard"):
        simulate(TWO, Schedule.parse("Fc0 Da1"))


def test_rules_as_enum_and_as_text_are_the_same() -> None:
    schedule = Schedule.parse("Fc0 Da1 Fc0 Fa1 B1 Fa0 B0")
    assert simulate(TWO, schedule, discards=Discards.TAPE) == simulate(
        TWO, schedule, discards="tape"
    )


def test_operations_may_have_overheads_of_their_own() -> None:
    """Two forwards of stage 0: 5 + 10 + 1,000 and 5 + 20 + 2; its stage's overhead is not used."""
    stage = Stage(
        output_bytes=10, saved_bytes=20, gradient_bytes=7,
        forward_overhead_bytes=9999, backward_overhead_bytes=9999,
    )  # fmt: skip
    chain = ChainProfile(input_bytes=5, input_gradient_bytes=3, stages=(stage, stage))
    schedule = Schedule.parse("Fc0 Fa1 B1 Fa0 B0")
    replay = simulate(chain, schedule, overheads=(1000, 300, 40, 2, 100))
    assert [snapshot.during_bytes for snapshot in replay.timeline] == [
        5 + 10 + 7 + 1000,
        5 + 10 + 20 + 7 + 300,
        5 + 10 + 20 + 7 + 7 + 40,
        5 + 20 + 7 + 2,
        5 + 20 + 7 + 3 + 100,
    ]
    assert replay.peak_bytes == 1022
    discarding = simulate(
        chain, Schedule.parse("Fc0 Fa1 B1 Fc0 Da1 Fa0 B0"), discards="free", overheads=[0] * 7
    )
    assert discarding.timeline[4].during_bytes == 5 + 10 + 7
    assert simulate(chain, schedule, overheads=[9999] * 5) == simulate(chain, schedule)


@pytest.mark.parametrize("overheads", [(), (1, 2, 3), (1, 2, 3, 4, 5, 6)])
def test_one_overhead_is_needed_for_each_operation(overheads: tuple[int, ...]) -> None:
    stage = Stage(output_bytes=10, saved_bytes=20)
    chain = ChainProfile(input_bytes=5, input_gradient_bytes=3, stages=(stage, stage))
    count = len(overheads)
    with pytest.raises(ValueError, match=f"there are {count} overheads for 5 operations; give"):
        simulate(chain, Schedule.parse("Fc0 Fa1 B1 Fa0 B0"), overheads=overheads)


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(UnknownMethodError, match="discards is 'apples', must be one of 'table1'"):
        simulate(TWO, Schedule.parse("Fa0 Fa1 B1 B0"), discards="apples")


@pytest.mark.parametrize(
    ("profile", "rules", "text", "index", "reason"),
    [
        (THREE, "table1", "Fa0 B0", 1, "B0 needs the gradient of a1, but that of a3 is held"),
        (ONE, "free", "Fa0 B0 B0", 2, "B0 needs the gradient of a1, but that of a0 is held"),
        (TWO, "tape", "Fa0 Fa1 B1 B1", 3, "B1 needs the gradient of a2, but that of a1 is held"),
        (THREE, "table1", "Fc0 Fc1 B2", 2, "B2 needs what Fa2 saves, and it is not stored"),
        (TWO, "free", "Fc0 Fa1 Db1 B1", 3, "B1 needs what Fa1 saves, and it is not stored"),
        (
            THREE,
            "table1",
            "Fc0 Fa1 Fn1 Fa2 B2 B1",
            5,
            "B1 needs its input a1, and neither it nor what Fa0 saves is stored",
        ),
        (
            THREE,
            "free",
            "Fa0 Fa1 Db0 Fa2 B2 B1",
            5,
            "B1 needs its input a1, and neither it nor what Fa0 saves is stored",
        ),
        (TWO, "table1", "Fa0 Fn1", 1, "Fn1 needs a1 itself to drop it, and it is not stored"),
        (
            THREE,
            "table1",
            "Fc0 Fc2",
            1,
            "Fc2 needs its input a2, and neither it nor what Fa1 saves is stored",
        ),
        (
            THREE,
            "free",
            "Fc0 Fa0 Fa2",
            2,
            "Fa2 needs its input a2, and neither it nor what Fa1 saves is stored",
        ),
        (
            THREE,
            "table1",
            "Fc0 Fn1 Fa1",
            2,
            "Fa1 needs its input a1, and neither it nor what Fa0 saves is stored",
        ),
        (TWO, "free", "Fa0 Fa2", 1, "Fa2 names stage 2, the last one is 1"),
        (TWO, "free", "B2", 0, "B2 names stage 2, the last one is 1"),
        (ONE, "free", "Fc0 Da1", 1, "Da1 names stage 1, the last one is 0"),
        (
            TWO,
            "table1",
            "Fc0 Da1",
            1,
            "Da1 is a discard, and under 'table1' only Fn and B remove data",
        ),
        (
            TWO,
            "table1",
            "Fa0 Db0",
            1,
            "Db0 is a discard, and under 'table1' only Fn and B remove data",
        ),
        (
            TWO,
            "tape",
            "Fa0 Da0",
            1,
            "Da0 would drop the network's input, which nothing can recompute",
        ),
        (
            TWO,
            "free",
            "Da0",
            0,
            "Da0 would drop the network's input, which nothing can recompute",
        ),
        (TWO, "tape", "Fa0 Da1", 1, "Da1 drops what is not stored"),
        (TWO, "free", "Fc0 Db0", 1, "Db0 drops what is not stored"),
        (TWO, "free", "Fc0 Fa1 Db0", 2, "Db0 drops what is not stored"),
        (
            THREE,
            "tape",
            "Fc0 Fa1 Fn1",
            2,
            "Fn1 removes the input of stage 1, whose saved data stays",
        ),
        (
            THREE,
            "tape",
            "Fc0 Fa1 Da1",
            2,
            "Da1 removes the input of stage 1, whose saved data stays",
        ),
        (
            THREE,
            "tape",
            "Fa0 Fa1 Db0",
            2,
            "Db0 removes the input of stage 1, whose saved data stays",
        ),
        (
            TWO,
            "tape",
            "Fa0 Fn0",
            1,
            "Fn0 removes the input of stage 0, whose saved data stays",
        ),
        (
            TWO,
            "tape",
            "Fa0 Fa1 B1 Fa1 B0",
            4,
            "B0 removes the input of stage 1, whose saved data stays",
        ),
    ],
)
def test_refused_operation(
    profile: ChainProfile, rules: str, text: str, index: int, reason: str
) -> None:
    with pytest.raises(InvalidScheduleError, match=f"^step {index + 1}: {reason}\n") as caught:
        simulate(profile, Schedule.parse(text), discards=rules)
    assert (caught.value.index, caught.value.reason) == (index, reason)


def test_input_dropped_by_fn_is_gone_for_good() -> None:
    with pytest.raises(
        InvalidScheduleError, match=r"^step 4: Fa0 needs the network's input a0"
    ) as caught:
        simulate(TWO, Schedule.parse("Fn0 Fa1 B1 Fa0 B0"))
    assert caught.value.index == 3


@pytest.mark.parametrize("kind", OpKind)
def test_negative_stage_is_refused(kind: OpKind) -> None:
    with pytest.raises(InvalidScheduleError, match="-1"):
        simulate(TWO, Schedule((*Schedule.parse("Fa0 Fa1 B1 B0"), Op(kind, -1))), discards="free")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the schedule ends before B1; every stage needs its backward"),
        ("Fa0 Fa1", "the schedule ends before B1; every stage needs its backward"),
        ("Fa0 Fa1 B1", "the schedule ends before B0; every stage needs its backward"),
    ],
)
def test_schedule_that_ends_early(text: str, reason: str) -> None:
    with pytest.raises(InvalidScheduleError, match=f"^{reason}$") as caught:
        simulate(TWO, Schedule.parse(text))
    assert (caught.value.index, caught.value.reason) == (None, reason)


def listing_of(text: str) -> str:
    with pytest.raises(InvalidScheduleError, match="step") as caught:
        simulate(THREE, Schedule.parse(text))
    return str(caught.value)


def test_listing_shows_four_operations_around_the_wrong_one() -> None:
    assert listing_of("Fc0 Fc0 Fc0 Fn1 Fa2 B1 Fa0 Fa1 B2 B1 B0 Fa0") == (
        "step 6: B1 needs the gradient of a2, but that of a3 is held\n"
        "         2  Fc0\n"
        "         3  Fc0\n"
        "         4  Fn1\n"
        "         5  Fa2\n"
        "-->      6  B1\n"
        "         7  Fa0\n"
        "         8  Fa1\n"
        "         9  B2\n"
        "        10  B1"
    )


def test_listing_stops_at_both_ends_of_the_schedule() -> None:
    assert listing_of("Fn1 Fa0") == (
        "step 1: Fn1 needs a1 itself to drop it, and it is not stored\n"
        "-->      1  Fn1\n"
        "         2  Fa0"
    )
