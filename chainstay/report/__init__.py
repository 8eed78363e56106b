"""What people see: tables, pictures, pages and traces of profiles, plans and measurements."""

from chainstay.report.frontier import Frontier, FrontierPoint, frontier_of
from chainstay.report.pages import page
from chainstay.report.tracing import trace

__all__ = ["Frontier", "FrontierPoint", "frontier_of", "page", "trace"]
