"""Documents written from the code itself: the configuration reference, a page per method, what methods send.

``python -m reference_pages`` rewrites ``docs/configuration.md`` and ``docs/methods/``; with ``--measure`` it also
runs every method and rewrites ``docs/communication.md``.
"""

from reference_pages.configuration import configuration_reference, configuration_tables, type_words
from reference_pages.pages import built_in_parts, method_index, method_page

__all__ = [
    "built_in_parts",
    "configuration_reference",
    "configuration_tables",
    "method_index",
    "method_page",
    "type_words",
]
