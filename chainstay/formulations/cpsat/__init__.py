"""The chain as a constraint program on integers: a second, independent statement.

`CPSAT` is the method for `solve_chain`; importing it needs no OR-Tools. Nothing of the
Pyomo model is used but the theory in `chainstay.formulations.domains`: variables,
sentences, encoding and decoding are stated anew, on logic instead of linear rows and in
exact bytes instead of floats, so that an error in one model shows as a difference.
"""

from chainstay.formulations.cpsat.method import CPSAT

__all__ = ["CPSAT"]
