"""The page: a report as one HTML file with the graph, which opens without a network."""

from byoc.page._bundle_page import make_page, make_plan_page
from byoc.page._page_file import PageParts, render_page
from byoc.page._trace_file import read_trace
